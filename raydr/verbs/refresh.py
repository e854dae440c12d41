"""``raydr refresh``: rounds of training, encoding, mining and judging."""

from __future__ import annotations

from typing import Annotated

import typer

from raydr.verbs.options import ConfigFile, Overrides, load


def run(
    config: ConfigFile,
    set_: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the steps that would run, with the reasons; run nothing.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Do every step of the plan again, those that are done too.")
    ] = False,
) -> None:
    """Refresh rounds: train, encode, index, search, mine, judge, train again; killed, the same command goes on."""
    import raydr

    raydr.refresh(load(config, set_), overwrite=overwrite, dry_run=dry_run)
