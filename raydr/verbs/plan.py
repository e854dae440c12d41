"""``raydr plan``: what a run will take, before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raydr.config.run import RunConfig
from raydr.graph.session import open_session
from raydr.verbs.command import takes_config

if TYPE_CHECKING:
    from raydr.graph.forecast import Forecast


@takes_config
def plan(
    config: RunConfig,
    refresh: bool = False,
) -> Forecast:
    """Try the model on some of the prepared texts, and say what every stage takes: time, memory, disk, money.

    Args:
        refresh: plan the refresh rounds instead of one training and its evaluation.
    """
    from raydr.ops.plan.run import run_plan

    with open_session(config) as session:
        return run_plan(session, refresh)
