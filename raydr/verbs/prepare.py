"""``raydr prepare``: raw files to a corpus and a data set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raydr.verbs.command import Again, DryRun

if TYPE_CHECKING:
    from raydr.config.run import RunConfig
    from raydr.store.artifact import Artifact


def prepare(config: RunConfig, again: Again = False, dry_run: DryRun = False) -> list[Artifact]:
    """Read the raw files into a corpus and a data set, and put noise in on purpose if the config says so.

    Returns:
        The corpus and the data set.
    """
    from raydr.graph.session import open_session

    with open_session(config, again, dry_run) as session:
        dataset, corpus = session.recipe.dataset(), session.recipe.corpus()
        return session.make(corpus, dataset, anew=list(session.recipe.names.values()))
