"""Tokens of texts in flat arrays, which travel between processes without padding and copies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raydr.data.parts import offsets_of
from raydr.data.rows import join_passage
from raydr.errors import ModelError
from raydr.models.checkpoint import naming
from raydr.models.checkpoint_settings import CheckpointFiles
from raydr.models.config import ModelConfig, Side


@dataclass(frozen=True)
class Tokens:
    """Concatenated token ids of N texts.

    Args:
        ids: int32, all token ids.
        offsets: int64 (N+1), text i is ids[offsets[i]:offsets[i+1]].
        type_starts: int32 (N), start of the second segment in each text; the text's length without such a segment.
        num_truncated: number of texts that were longer than the maximum length.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    type_starts: NDArray[np.int32]
    num_truncated: int = 0

    @classmethod
    def of(cls, encoded: Any) -> Tokens:
        """Convert the output of a fast tokenizer."""
        rows = encoded["input_ids"]
        lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
        ids = np.fromiter((token for row in rows for token in row), dtype=np.int32, count=int(lengths.sum()))
        offsets = offsets_of(lengths)
        type_starts = lengths.astype(np.int32)
        if "token_type_ids" in encoded:
            starts = (types.index(1) if 1 in types else len(types) for types in encoded["token_type_ids"])
            type_starts = np.fromiter(starts, dtype=np.int32, count=len(rows))
        truncated = sum(bool(encoding.overflowing) for encoding in encoded.encodings or [])
        return cls(ids, offsets, type_starts, truncated)

    @classmethod
    def none(cls) -> Tokens:
        """Return the tokens of no texts."""
        empty = np.zeros(0, np.int32)
        return cls(empty, np.zeros(1, np.int64), empty)

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
        """Return a one-row batch for Ray Data."""
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


class Tokenizer:
    """A checkpoint's tokenizer, which must be a fast tokenizer.

    Args:
        name: folder or hub name of the checkpoint.
        trust_remote_code: whether code of the checkpoint may run.
        pads_by_end: whether the end token replaces a missing padding token; for causal models, which do not attend to
            padding.

    Raises:
        ModelError: the tokenizer cannot be loaded, has no padding token, or gives a text other token types than 0.
    """

    def __init__(self, name: str | Path, trust_remote_code: bool, pads_by_end: bool = False) -> None:
        from transformers import AutoTokenizer

        with naming(f"the tokenizer of {name}"):
            self.tokenizer = AutoTokenizer.from_pretrained(str(name), trust_remote_code=trust_remote_code)
        if self.tokenizer.pad_token_id is None and pads_by_end:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        if self.tokenizer.pad_token_id is None:
            raise ModelError(
                f"the tokenizer of {name} has no padding token: set pad_token in its tokenizer_config.json"
            )
        with naming(f"the tokenizer of {name}"):
            types = self.tokenizer("a", return_token_type_ids="token_type_ids" in self.tokenizer.model_input_names)
        if any(types.get("token_type_ids", ())):
            # As those of Funnel and XLNet.
            raise ModelError(
                f"the tokenizer of {name} gives a text token types other than 0 ({types['token_type_ids']}), which "
                "raydr does not support: use another checkpoint"
            )
        with naming(f"the config of {name}"):
            shape = CheckpointFiles(str(name)).read("config.json") or {}
            size, padding = (shape.get(key) for key in ("vocab_size", "pad_token_id"))
        self.name, self.num_words = str(name), size if isinstance(size, int) else None
        self.network_pad_id = padding if isinstance(padding, int) and padding >= 0 else None

    @property
    def pad_id(self) -> int:
        return int(self.tokenizer.pad_token_id)

    def encode(
        self, first: list[str], second: list[str] | None, truncation: str | bool, max_length: int, with_types: bool
    ) -> Tokens:
        """Tokenise texts or pairs, cut to ``max_length`` tokens by a truncation strategy of Transformers.

        Raises:
            ModelError: a token's id is beyond the model's word embeddings.
        """
        encoded = self.tokenizer(
            first, second, truncation=truncation, max_length=max_length, padding=False, return_attention_mask=False,
            return_token_type_ids=with_types,
        )  # fmt: skip
        tokens = Tokens.of(encoded)
        largest = int(tokens.ids.max(initial=0))
        if self.num_words is not None and largest >= self.num_words:
            word = self.tokenizer.convert_ids_to_tokens(largest)
            raise ModelError(
                f"the tokenizer of {self.name} has the id {largest} for {word!r}, and the model has embeddings of "
                f"{self.num_words} tokens (vocab_size): the two belong to different models"
            )
        return tokens


def join_titles(titles: list[str], texts: list[str], separator: str) -> list[str]:
    """Put titles before their texts; a text without a title stays as it is.

    >>> join_titles(["Bern", ""], ["A city.", "A text."], ": ")
    ['Bern: A city.', 'A text.']
    """
    return [join_passage(title, text, separator) for title, text in zip(titles, texts, strict=True)]


class TextTokenizer(Tokenizer):
    """Tokenizer of titles and texts for a side of a model.

    Prefix, maximum length and the treatment of titles come from the config that is saved with the model. Training,
    encoding and search thus use the same tokens.

    Args:
        folder: folder of the tokenizer, or a hub name.
        config: config of the model.
        side: side of the texts.
    """

    def __init__(self, folder: str | Path, config: ModelConfig, side: Side) -> None:
        super().__init__(folder, config.trust_remote_code)
        self.config = config
        self.side = config.side(side)

    def __call__(self, titles: list[str] | None, texts: list[str]) -> Tokens:
        """Tokenise; longer texts are cut at the side's maximum length and counted."""
        if not texts:
            return Tokens.none()
        prefix, max_length = self.side.prefix, self.side.max_length
        if titles is None or self.config.title == "join":
            whole = texts if titles is None else join_titles(titles, texts, self.config.title_separator)
            return self.encode([prefix + text for text in whole], None, True, max_length, with_types=False)
        room = max(1, max_length - self.tokenizer.num_special_tokens_to_add(pair=True) - 1)
        first = [prefix + title for title in titles]
        # A token has at least one byte.
        first = [title if len(title.encode()) <= room else self._cut_title(title, room) for title in first]
        return self.encode(first, texts, "only_second", max_length, with_types=True)

    def _cut_title(self, title: str, room: int) -> str:
        """Cut a title so that its text has a token at least; the tokenizer cuts texts alone, and fails otherwise."""
        # A cut word may become more tokens than before, so that the cut is repeated.
        for num in range(room, 0, -1):
            spans = self.tokenizer(title, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
            if len(spans) <= room:
                break
            title = title[: spans[num - 1][1]]
        return title
