"""``raydr why``: one query with its positives, its negatives, where they come from and what judges say."""

from __future__ import annotations

from typing import Annotated

import typer

from raydr.verbs.options import ConfigFile, Overrides, load


def run(
    config: ConfigFile,
    query_id: Annotated[str, typer.Argument(metavar="QUERY_ID", help="Id of the query.")],
    set_: Overrides = None,
) -> None:
    """Show each negative of a query with its provenance and verdicts."""
    import raydr
    from raydr.pages.query_story import print_story
    from raydr.runtime.console import output

    print_story(raydr.why(load(config, set_), query_id), output())
