"""``raydr import-run``: a run that another program has made."""

from __future__ import annotations

from typing import Annotated

import typer

from raydr.verbs.options import ConfigFile, Overrides, Overwrite, TestSplit, load


def run(
    config: ConfigFile,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The run in TREC format, plain or .gz; local or a URL.")],
    system: Annotated[str, typer.Option("--system", help="What the run is called: mine and evaluate take that name.")],
    split: TestSplit = "",
    set_: Overrides = None,
    overwrite: Overwrite = False,
) -> None:
    """Take over a run of another program, such as Lucene's BM25, to mine candidates from or to compare with."""
    import raydr

    raydr.import_run(load(config, set_), file, system=system, split=split, overwrite=overwrite)
