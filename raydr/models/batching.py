"""Batches of texts of similar length, by token budget."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydr.models.tokens import Tokens


def plan_batches(lengths: NDArray[np.int64], token_budget: int) -> list[NDArray[np.int64]]:
    """Group texts so that each group, padded to its longest, stays within the budget.

    Texts are sorted by length (longest first, ties in order), so that little padding is needed and an
    out-of-memory error shows at the first batch. A text longer than the budget gets a batch of its own.

    >>> [group.tolist() for group in plan_batches(np.array([3, 9, 3, 8]), token_budget=18)]
    [[1, 3], [0, 2]]
    """
    order = np.argsort(-lengths, kind="stable")
    groups: list[NDArray[np.int64]] = []
    start = 0
    while start < len(order):
        longest = int(max(lengths[order[start]], 1))
        size = max(1, token_budget // longest)
        groups.append(order[start : start + size])
        start += size
    return groups


def pad(tokens: Tokens, rows: NDArray[np.int64], pad_id: int) -> dict[str, Tensor]:
    """The chosen texts as padded tensors: input_ids, attention_mask, token_type_ids, each (len(rows), longest)."""
    lengths = tokens.lengths[rows]
    width = int(lengths.max())
    column = np.arange(width)
    mask = column[None, :] < lengths[:, None]
    # Positions behind a text's end point anywhere valid; they are overwritten by the padding.
    source = np.minimum(tokens.offsets[rows][:, None] + column[None, :], max(len(tokens.ids) - 1, 0))
    ids = np.where(mask, tokens.ids[source], pad_id)
    types = (column[None, :] >= tokens.type_starts[rows][:, None]) & mask
    return {
        "input_ids": torch.from_numpy(ids.astype(np.int64)),
        "attention_mask": torch.from_numpy(mask.astype(np.int64)),
        "token_type_ids": torch.from_numpy(types.astype(np.int64)),
    }


def padded_batches(
    tokens: Tokens, token_budget: int, pad_id: int
) -> Iterator[tuple[NDArray[np.int64], dict[str, Tensor]]]:
    """Row numbers and padded tensors, batch by batch."""
    for rows in plan_batches(tokens.lengths, token_budget):
        yield rows, pad(tokens, rows, pad_id)
