"""``raydr index``: a FAISS index over a model's passage vectors."""

from __future__ import annotations

from raydr.config.run import RunConfig
from raydr.graph.session import open_session
from raydr.store.artifact import Artifact
from raydr.verbs.command import Again, DryRun, Model, takes_config


@takes_config
def index(config: RunConfig, model: Model = "trained", again: Again = False, dry_run: DryRun = False) -> list[Artifact]:
    """Build the FAISS index over a model's passage vectors."""
    with open_session(config, again, dry_run) as session:
        return session.make(session.recipe.index(model))
