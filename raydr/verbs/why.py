"""``raydr why``: what is known of the negatives of one query."""

from __future__ import annotations

from typing import Annotated

import typer

from raydr.config.run import RunConfig
from raydr.graph.why import explain_query
from raydr.pages.query_story import QueryStory, print_story
from raydr.runtime.console import output
from raydr.stages.places import Places
from raydr.verbs.command import takes_config


@takes_config
def why(config: RunConfig, query_id: Annotated[str, typer.Argument(metavar="QUERY_ID")]) -> QueryStory:
    """Show each negative of a query with its provenance and verdicts; opens what is there, and needs no Ray.

    Args:
        query_id: id of the query.
    """
    return explain_query(Places.of(config.workdir), query_id, config.data.train_split)


def show_why(story: QueryStory) -> None:
    """Print what is known."""
    print_story(story, output())
