"""``raydr inject-noise``: make the training split noisy on purpose, the truth kept."""

from __future__ import annotations

from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.graph.session import open_session
from raydr.store.artifact import Artifact
from raydr.verbs.command import Again, DryRun, takes_config


@takes_config
def inject_noise(config: RunConfig, again: Again = False, dry_run: DryRun = False) -> list[Artifact]:
    """Put mismatched pairs or false negatives into the training split, as the section inject_noise says."""
    if config.inject_noise is None:
        raise ConfigError("injecting noise needs a section inject_noise in the config, for example {share: 0.2}")
    with open_session(config, again, dry_run) as session:
        return session.make(session.recipe.dataset())
