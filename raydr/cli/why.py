"""``raydr why``: one query with its positives, its negatives, where they come from and what judges say."""

from __future__ import annotations

from typing import Annotated

import typer

from raydr.cli.options import ConfigFile, Overrides, load


def run(
    config: ConfigFile,
    query_id: Annotated[str, typer.Argument(metavar="QUERY_ID", help="Id of the query.")],
    set_: Overrides = None,
) -> None:
    """Show each negative of a query with its provenance and verdicts."""
    import raydr
    from raydr.console import output
    from raydr.reporting.query_story import print_story

    print_story(raydr.why(load(config, set_), query_id), output())
