"""``raydr plan``: what a run will take, before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from raydr.config.run import RunConfig
from raydr.graph.session import open_session

if TYPE_CHECKING:
    from raydr.graph.forecast import Forecast


def plan(
    config: RunConfig,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Plan the refresh rounds instead of one training and its evaluation.")
    ] = False,
) -> Forecast:
    """Try the model on some of the prepared texts, and say what every stage takes: time, memory, disk, money."""
    from raydr.ops.plan.run import run_plan

    with open_session(config) as session:
        return run_plan(session, refresh)
