"""``raydr encode``: passages or queries to vectors."""

from __future__ import annotations

from raydr.config.run import RunConfig
from raydr.graph.session import open_session
from raydr.store.artifact import Artifact
from raydr.verbs.command import Again, DryRun, Model, takes_config


@takes_config
def encode(
    config: RunConfig,
    model: Model = "trained",
    split: str = "",
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Artifact]:
    """Encode the corpus, or the queries of a split; goes on where an interrupted run was.

    Args:
        split: encode the queries of this split; the corpus if left out.
    """
    with open_session(config, again, dry_run) as session:
        recipe = session.recipe
        return session.make(recipe.queries(split, model) if split else recipe.passages(model))
