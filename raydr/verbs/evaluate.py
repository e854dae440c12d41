"""``raydr evaluate``: measures, intervals, comparisons."""

from __future__ import annotations

from typing import Annotated

import typer

from raydr.verbs.options import ConfigFile, Overrides, Overwrite, TestSplit, load


def run(
    config: ConfigFile,
    system: Annotated[
        list[str] | None,
        typer.Option("--system", help="A run to evaluate, repeatable; the others are compared with the first."),
    ] = None,
    split: TestSplit = "",
    set_: Overrides = None,
    overwrite: Overwrite = False,
) -> None:
    """Evaluate the runs of a split side by side, with confidence intervals and paired tests."""
    import raydr

    raydr.evaluate(load(config, set_), split=split, systems=system, overwrite=overwrite)
