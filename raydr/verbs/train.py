"""``raydr train``: a dual encoder on Ray Train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from raydr.verbs.command import Again, DryRun

if TYPE_CHECKING:
    from raydr.config.run import RunConfig
    from raydr.store.artifact import Artifact


def train(
    config: RunConfig,
    name: Annotated[
        str, typer.Option("--name", help="Name of the model; the name of a variant trains that variant.")
    ] = "trained",
    negatives: Annotated[
        str, typer.Option("--negatives", help="Folder of a negatives artefact in place of what is mined and judged.")
    ] = "",
    dataset: Annotated[
        str, typer.Option("--dataset", help="Folder of a dataset artefact in place of the run's, e.g. a judged one.")
    ] = "",
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Artifact]:
    """Train the dual encoder; what it needs is made first, and an interrupted training goes on."""
    from raydr.graph.recipe import artifact_node
    from raydr.graph.session import open_session

    with open_session(config, again, dry_run) as session:
        model = session.recipe.trained(
            name,
            artifact_node(negatives, "negatives") if negatives else None,
            artifact_node(dataset, "dataset") if dataset else None,
        )
        return session.make(model)
