"""``raydr mine``: candidate hard negatives."""

from __future__ import annotations

from typing import Annotated

import typer

from raydr.verbs.options import ConfigFile, Overrides, Overwrite, TrainSplit, load


def run(
    config: ConfigFile,
    split: TrainSplit = "",
    system: Annotated[
        str, typer.Option("--system", help="Mine this system's run (bm25, a model's name) instead of the configured.")
    ] = "",
    set_: Overrides = None,
    overwrite: Overwrite = False,
) -> None:
    """Find candidate hard negatives: the best passages of a run that are not known positives."""
    import raydr

    raydr.mine(load(config, set_), split=split, system=system, overwrite=overwrite)
