"""``raydr train``: a dual encoder on Ray Train."""

from __future__ import annotations

from typing import Annotated

import typer

from raydr.verbs.options import ConfigFile, Overrides, Overwrite, load


def run(
    config: ConfigFile,
    name: Annotated[str, typer.Option("--name", help="Name of the model in the working folder.")] = "trained",
    negatives: Annotated[
        str, typer.Option("--negatives", help="Folder of a negatives artefact, e.g. a judged one.")
    ] = "",
    dataset: Annotated[
        str, typer.Option("--dataset", help="Folder of a dataset artefact in place of the run's, e.g. a judged one.")
    ] = "",
    set_: Overrides = None,
    overwrite: Overwrite = False,
) -> None:
    """Train the dual encoder; an interrupted training goes on from its last checkpoint."""
    import raydr

    raydr.train(load(config, set_), name=name, negatives=negatives, dataset=dataset, overwrite=overwrite)
