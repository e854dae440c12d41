"""``raydr audit``: how noisy a data set is, by several judges, as one report."""

from __future__ import annotations

from typing import Annotated

import typer

from raydr.verbs.options import ConfigFile, Overrides, Overwrite, TrainSplit, load


def run(
    config: ConfigFile,
    model: Annotated[
        str,
        typer.Option(
            "--model", help="Model of the working folder; judge.model if it is there, else the untrained encoder."
        ),
    ] = "",
    judges: Annotated[
        str,
        typer.Option(
            "--judges",
            metavar="A,B",
            help="Judges, separated by commas (npc, consistency, pair_classifier, margin, sieve, classifier, guide); "
            "those of the config, or npc, consistency and margin.",
        ),
    ] = "",
    split: TrainSplit = "",
    set_: Overrides = None,
    overwrite: Overwrite = False,
) -> None:
    """Estimate mismatched pairs and false negatives, and show the worst of them, on one page."""
    import raydr

    names = [name.strip() for name in judges.split(",") if name.strip()]
    raydr.audit(load(config, set_), judges=names, split=split, model=model, overwrite=overwrite)
