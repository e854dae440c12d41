"""``raydr judge``: verdicts on candidate negatives and on annotated pairs, and the judged data."""

from __future__ import annotations

from typing import Annotated

import typer

from raydr.verbs.options import ConfigFile, Overrides, Overwrite, TrainSplit, load


def run(
    config: ConfigFile,
    judge: Annotated[
        list[str] | None,
        typer.Option(
            "--judge",
            help="Run this judge (sieve, classifier, margin, guide, consistency, npc, pair_classifier; truth keeps "
            "only pairs known to be clean) instead of those in the config; repeatable.",
        ),
    ] = None,
    split: TrainSplit = "",
    system: Annotated[
        str, typer.Option("--system", help="Judge this system's candidates (bm25, a model's name).")
    ] = "",
    set_: Overrides = None,
    overwrite: Overwrite = False,
) -> None:
    """Judge negatives and pairs, and write copies without what was found to be wrong."""
    import raydr

    raydr.judge(load(config, set_), judges=judge or [], split=split, system=system, overwrite=overwrite)
