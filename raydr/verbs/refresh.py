"""``raydr refresh``: rounds of training, encoding, mining and judging."""

from __future__ import annotations

from raydr.config.run import RunConfig
from raydr.graph.refresh import RefreshOutcome, run_refresh
from raydr.graph.session import open_session
from raydr.verbs.command import Again, DryRun, takes_config


@takes_config
def refresh(config: RunConfig, again: Again = False, dry_run: DryRun = False) -> RefreshOutcome | None:
    """Refresh rounds: train, encode, index, search, mine, judge, train again; killed, the same command goes on."""
    with open_session(config, again, dry_run) as session:
        return run_refresh(session)
