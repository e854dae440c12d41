"""The browser of queries: what each system finds for them, side by side; ``page.js`` draws it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class BrowsedQuery:
    """One query of a split.

    Args:
        text: of it.
        positives: ids of the passages that were judged relevant.
        values: its measure, a system each.
        top: ids of the best passages, a system each.
    """

    text: str
    positives: Sequence[str]
    values: Sequence[float]
    top: Sequence[Sequence[str]]


@dataclass(frozen=True)
class QueryBrowser:
    """Queries and what systems found for them.

    Args:
        systems: their names.
        measure: that queries are compared by.
        queries: some, or all.
        num_queries: of the split.
        passages: title and beginning of the text of all that are named.
    """

    systems: Sequence[str]
    measure: str
    queries: Sequence[BrowsedQuery]
    num_queries: int
    passages: Mapping[str, tuple[str, str]]

    def as_json(self) -> str:
        """For a script element: no text ends it.

        >>> "<" in QueryBrowser(["a"], "m", [BrowsedQuery("</script>", [], [0.5], [[]])], 1, {}).as_json()
        False
        """
        return json.dumps(asdict(self)).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
