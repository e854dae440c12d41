"""``raydr export``: the data set for other trainers."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from raydr.verbs.options import ConfigFile, Overrides, Overwrite, load


def run(
    config: ConfigFile,
    output: Annotated[str, typer.Argument(help="Folder or file to write.")],
    format: Annotated[Literal["dpr", "beir", "triples"], typer.Option("--format", help="Format to write.")] = "beir",
    negatives: Annotated[
        str, typer.Option("--negatives", help="Folder of a negatives artefact; the data set's own if left out.")
    ] = "",
    fold_whitespace: Annotated[
        bool, typer.Option("--fold-whitespace", help="Turn line breaks and tabs in texts into spaces (dpr, triples).")
    ] = False,
    set_: Overrides = None,
    overwrite: Overwrite = False,
) -> None:
    """Write the data set, with mined and judged negatives, as DPR JSON, BEIR or triples."""
    import raydr

    raydr.export(
        load(config, set_),
        output=output,
        format=format,
        negatives=negatives,
        fold_whitespace=fold_whitespace,
        overwrite=overwrite,
    )
