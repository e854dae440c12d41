"""``raydr quickstart``: the main job from raw files to a table."""

from __future__ import annotations

from typing import Annotated

import typer

from raydr.verbs.options import Overrides, Overwrite


def run(
    config: Annotated[
        str, typer.Argument(metavar="[CONFIG]", help="YAML file of a run; code search over installed packages if none.")
    ] = "",
    set_: Overrides = None,
    overwrite: Overwrite = False,
) -> None:
    """Run the main job: prepare, train, encode, index, search, evaluate against BM25 and the untrained encoder."""
    import raydr

    raydr.quickstart(config or None, overrides=set_, overwrite=overwrite)
