"""``raydr search``: a split's queries into a run, or one text on the screen."""

from __future__ import annotations

from typing import Annotated

import typer

from raydr.verbs.options import ConfigFile, Overrides, Overwrite, TestSplit, load


def run(
    config: ConfigFile,
    text: Annotated[str, typer.Argument(metavar="[TEXT]", help="Search this text and print the top passages.")] = "",
    model: Annotated[
        str, typer.Option("--model", help="Name of the model in the working folder; bm25 searches a split without one.")
    ] = "trained",
    split: TestSplit = "",
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Passages to print for TEXT.")] = 5,
    trec: Annotated[str, typer.Option("--trec", help="Also write the run in TREC format to this file.")] = "",
    set_: Overrides = None,
    overwrite: Overwrite = False,
) -> None:
    """Search the queries of a split, or a text given on the command line."""
    import raydr

    loaded = load(config, set_)
    if text:
        from raydr.verbs.hits import show_hits

        show_hits(text, raydr.search_text(loaded, text, model=model, top_k=top_k))
    else:
        raydr.search(loaded, split=split, model=model, trec=trec, overwrite=overwrite)
