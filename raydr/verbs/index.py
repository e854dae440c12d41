"""``raydr index``: a FAISS index over a model's passage vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raydr.verbs.command import Again, DryRun, Model

if TYPE_CHECKING:
    from raydr.config.run import RunConfig
    from raydr.store.artifact import Artifact


def index(config: RunConfig, model: Model = "trained", again: Again = False, dry_run: DryRun = False) -> list[Artifact]:
    """Build the FAISS index over a model's passage vectors."""
    from raydr.graph.session import open_session

    with open_session(config, again, dry_run) as session:
        return session.make(session.recipe.index(model))
