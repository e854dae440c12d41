"""``raydr plan``: what a run will take, before it starts."""

from __future__ import annotations

from typing import Annotated

import typer

from raydr.verbs.options import ConfigFile, Overrides, load


def run(
    config: ConfigFile,
    set_: Overrides = None,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Plan the refresh rounds instead of one training and its evaluation.")
    ] = False,
) -> None:
    """Try the model on some of the prepared texts, and say what every stage takes: time, memory, disk, money."""
    import raydr

    raydr.plan(load(config, set_), refresh=refresh)
