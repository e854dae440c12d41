"""Texts as tokens: flat arrays that travel between processes without padding and without copies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raydr.errors import ModelError
from raydr.models.config import ModelConfig, Side


@dataclass(frozen=True)
class Tokens:
    """Token ids of N texts, one after the other.

    Args:
        ids: int32, all token ids.
        offsets: int64 (N+1), text i is ids[offsets[i]:offsets[i+1]].
        type_starts: int32 (N), the position in each text where the second segment starts (its length if none).
        num_truncated: texts that were longer than the maximum length.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    type_starts: NDArray[np.int32]
    num_truncated: int = 0

    @classmethod
    def of(cls, encoded: Any) -> Tokens:
        """What a fast tokenizer has returned for some texts."""
        rows = encoded["input_ids"]
        lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
        ids = np.fromiter((token for row in rows for token in row), dtype=np.int32, count=int(lengths.sum()))
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        type_starts = lengths.astype(np.int32)
        if "token_type_ids" in encoded:
            starts = (types.index(1) if 1 in types else len(types) for types in encoded["token_type_ids"])
            type_starts = np.fromiter(starts, dtype=np.int32, count=len(rows))
        truncated = sum(bool(encoding.overflowing) for encoding in encoded.encodings or [])
        return cls(ids, offsets, type_starts, truncated)

    @property
    def num_rows(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def to_arrow(self) -> dict[str, NDArray[Any]]:
        """A one-row batch for Ray Data."""
        columns: dict[str, NDArray[Any]] = {}
        for name in ("ids", "offsets", "type_starts"):
            column = np.empty(1, dtype=object)
            column[0] = getattr(self, name)
            columns[name] = column
        columns["num_truncated"] = np.array([self.num_truncated])
        return columns

    @classmethod
    def from_arrow(cls, batch: dict[str, Any]) -> Tokens:
        """Undo :meth:`to_arrow`."""
        return cls(
            np.asarray(batch["ids"][0], dtype=np.int32),
            np.asarray(batch["offsets"][0], dtype=np.int64),
            np.asarray(batch["type_starts"][0], dtype=np.int32),
            int(batch["num_truncated"][0]),
        )


class TextTokenizer:
    """Turns titles and texts into tokens exactly as one side of a model wants them.

    The prefix, the maximum length and the way title and text become one input come from the model's config,
    which is stored with it, so that training, encoding and searching cannot differ.
    """

    def __init__(self, folder: str | Path, config: ModelConfig, side: Side) -> None:
        """
        Args:
            folder: the tokenizer's folder, or a hub name.
            config: the model's config.
            side: queries or passages.
        """
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=config.trust_remote_code)
        if self.tokenizer.pad_token_id is None:
            raise ModelError(f"the tokenizer of {folder} has no padding token; raydr needs one")
        self.config = config
        self.side = config.side(side)

    @property
    def pad_id(self) -> int:
        return int(self.tokenizer.pad_token_id)

    def __call__(self, titles: list[str] | None, texts: list[str]) -> Tokens:
        """Tokenise; longer texts are cut at the side's maximum length and counted."""
        if not texts:
            empty = np.zeros(0, np.int32)
            return Tokens(empty, np.zeros(1, np.int64), empty)
        first, second = self._segments(titles, texts)
        if second is not None:
            room = max(1, self.side.max_length - self.tokenizer.num_special_tokens_to_add(pair=True) - 1)
            # A token is a byte at least.
            first = [title if len(title.encode()) <= room else self._cut_title(title, room) for title in first]
        encoded = self.tokenizer(
            first,
            second,
            truncation="only_second" if second else True,
            max_length=self.side.max_length,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=second is not None,
        )
        return Tokens.of(encoded)

    def _segments(self, titles: list[str] | None, texts: list[str]) -> tuple[list[str], list[str] | None]:
        prefix = self.side.prefix
        if titles is None:
            return [prefix + text for text in texts], None
        if self.config.title == "pair":
            return [prefix + title for title in titles], texts
        separator = self.config.title_separator
        return [
            prefix + (f"{title}{separator}{text}" if title else text) for title, text in zip(titles, texts, strict=True)
        ], None

    def _cut_title(self, title: str, room: int) -> str:
        """As many tokens of a title as leave one for its text: tokenizers refuse more, since only texts are cut."""
        # A word that is cut may give more tokens than it had, so it is tried again.
        for wanted in range(room, 0, -1):
            spans = self.tokenizer(title, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
            if len(spans) <= room:
                break
            title = title[: spans[wanted - 1][1]]
        return title
