"""A mention of an entity as a query: the words around it, with markers at its ends."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from raydr.component import Config


class MentionConfig(Config):
    """How a mention and its context become the text of a query."""

    window: int = Field(default=96, ge=1)
    """Words of a query, those of the mention among them: half of the others before it and half after it, and what a
    short side leaves goes to the other. A mention that is longer stays whole, alone."""

    markers: tuple[str, str] = ("[", "]")
    """Words before and after the mention. A tokenizer cuts them into pieces like other words, unless the checkpoint's
    knows them as special tokens."""

    def text(self, before: Sequence[str], mention: Sequence[str], after: Sequence[str]) -> str:
        """The query of a mention, given as words.

        >>> MentionConfig(window=5).text(["a", "b", "c"], ["M"], ["d", "e", "f"])
        'b c [ M ] d e'
        >>> MentionConfig(window=5).text(["a", "b", "c", "d"], ["M"], ["e"])
        'b c d [ M ] e'
        >>> MentionConfig(window=1).text(["a"], ["M", "N"], ["b"])
        '[ M N ]'
        """
        room = max(0, self.window - len(mention))
        num_before = min(len(before), max(room // 2, room - len(after)))
        start, end = self.markers
        left = before[len(before) - num_before :]
        return " ".join([*left, start, *mention, end, *after[: room - num_before]])
