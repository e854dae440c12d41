"""Printing the passages that were found for a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from raydr.runtime.console import output, shown

if TYPE_CHECKING:
    from raydr.indexing.searcher import Hit


def show_hits(query: str, hits: Sequence[Hit]) -> None:
    """The passages found for one query, readably: rank, score, id, title and the beginning of the text."""
    out = output()
    out.print(Text(shown(query), style="bold"))
    if not hits:
        out.print("nothing found: the corpus has no word of it")
    for hit in hits:
        head = Text.assemble(
            (f"{hit.rank:>3}. ", "bold"), f"{hit.score:.3f}  ", (hit.passage_id, "dim"), "  ", shown(hit.title)
        )
        out.print(head)
        text = hit.text if len(hit.text) <= 400 else f"{hit.text[:400]}..."
        out.print(Padding(Text(shown(text)), (0, 0, 1, 5), expand=False))
