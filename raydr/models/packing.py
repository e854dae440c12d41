"""Batches without padding: texts are laid one after the other, and each attends to itself only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydr.data.parts import offsets_of
from raydr.models.batching import move
from raydr.models.tokens import Tokens

#: Least number of tokens, texts and positions that shapes are rounded up to.
_LEAST = 64


@dataclass(frozen=True)
class PackedTexts:
    """N texts, T tokens in all.

    Behind the last text there may be tokens that belong to none, and texts without tokens: they round the shapes up.

    Args:
        tokens_3T: int64, of each token its id, its position, and 1 in the second segment.
        starts_N1: int32, where each text starts, and the end of the last; (N+1,).
        longest: tokens of the longest text, or more.
    """

    tokens_3T: Tensor
    starts_N1: Tensor
    longest: int

    @property
    def input_ids_1T(self) -> Tensor:
        return self.tokens_3T[:1]

    @property
    def position_ids_1T(self) -> Tensor:
        return self.tokens_3T[1:2]

    @property
    def token_type_ids_1T(self) -> Tensor:
        return self.tokens_3T[2:]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the numbers of tokens and texts, and the tokens of the longest."""
        return self.tokens_3T.shape[1], len(self.starts_N1) - 1, self.longest

    def to(self, device: torch.device) -> PackedTexts:
        """Move the texts to a device; copies to it do not block."""
        return PackedTexts(move(self.tokens_3T, device), move(self.starts_N1, device), self.longest)

    def clone(self) -> PackedTexts:
        """Copy the texts into memory of their own, on the same device."""
        return PackedTexts(self.tokens_3T.clone(), self.starts_N1.clone(), self.longest)

    def fill(self, texts: PackedTexts) -> None:
        """Overwrite these texts by others of the same shape, on the same device."""
        self.tokens_3T.copy_(texts.tokens_3T)
        self.starts_N1.copy_(texts.starts_N1)

    def text_of_tokens(self) -> Tensor:
        """Return the text of each token, int64 (T,); the last text for tokens of none."""
        starts_N1 = self.starts_N1.long()
        token_T = torch.arange(self.tokens_3T.shape[1], device=starts_N1.device)
        return torch.searchsorted(starts_N1[1:], token_T, right=True).clamp(max=len(starts_N1) - 2)


def plan_packs(lengths: NDArray[np.int64], token_budget: int) -> list[NDArray[np.int64]]:
    """Group texts, longest first, so that each group has at most ``token_budget`` tokens.

    A longer text gets a group of its own.

    >>> [group.tolist() for group in plan_packs(np.array([3, 9, 3, 8]), token_budget=12)]
    [[1], [3, 0], [2]]
    """
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    groups: list[NDArray[np.int64]] = []
    start = before = 0
    while start < len(order):
        stop = max(start + 1, int(np.searchsorted(ends, before + token_budget, side="right")))
        groups.append(order[start:stop])
        start, before = stop, int(ends[stop - 1])
    return groups


def pack(tokens: Tokens, rows: NDArray[np.int64], first_position: int = 0, rounded: bool = False) -> PackedTexts:
    """Lay the chosen texts one after the other.

    Args:
        tokens: all texts.
        rows: the chosen ones.
        first_position: of each text's first token.
        rounded: make the shapes a few sizes that come again (:func:`round_up`), for passes that are recorded by shape.
    """
    lengths = tokens.lengths[rows]
    starts = offsets_of(lengths)
    num_tokens, num_texts, longest = int(starts[-1]), len(rows), int(lengths.max(initial=0))
    place = np.arange(num_tokens) - np.repeat(starts[:-1], lengths)
    ids = tokens.ids[np.repeat(tokens.offsets[rows], lengths) + place]
    types = place >= np.repeat(tokens.type_starts[rows], lengths)
    tokens_3T = np.zeros((3, round_up(num_tokens) if rounded else num_tokens), dtype=np.int64)
    tokens_3T[:, :num_tokens] = ids, place + first_position, types
    tokens_3T[1, num_tokens:] = first_position
    # The tokens of no text count for the last one, which must not be one of these.
    starts_N1 = np.full((round_up(num_texts + 1) if rounded else num_texts) + 1, num_tokens, dtype=np.int32)
    starts_N1[: num_texts + 1] = starts
    return PackedTexts(
        torch.from_numpy(tokens_3T), torch.from_numpy(starts_N1), round_up(longest) if rounded else longest
    )


def round_up(number: int) -> int:
    """Return the next of the sizes that shapes are rounded to: at most an eighth more, or 64.

    >>> [round_up(number) for number in (1, 65, 150, 16_000)]
    [64, 72, 160, 16384]
    """
    step = 1 << ((max(number, _LEAST) - 1).bit_length() - 4)
    return -(-max(number, _LEAST) // step) * step
