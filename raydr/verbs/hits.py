"""The passages found for a text, on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from rich.padding import Padding
from rich.text import Text

from raydr.indexing.searcher import Hit
from raydr.runtime.console import output, shown

#: Characters of a passage's text.
_TEXT_CHARS = 400


def show_hits(query: str, hits: Sequence[Hit]) -> None:
    """Print them readably: rank, score, id, title and the beginning of the text."""
    out = output()
    out.print(Text(shown(query), style="bold"))
    for hit in hits:
        head = Text.assemble(
            (f"{hit.rank:>3}. ", "bold"), f"{hit.score:.3f}  ", (hit.passage_id, "dim"), "  ", shown(hit.title)
        )
        out.print(head)
        text = hit.text if len(hit.text) <= _TEXT_CHARS else f"{hit.text[:_TEXT_CHARS]}..."
        out.print(Padding(Text(shown(text)), (0, 0, 1, 5), expand=False))
