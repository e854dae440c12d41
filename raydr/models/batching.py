"""Batches of texts of similar length: by token budget for inference, as groups within a batch for training."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydr.models.tokens import Tokens


def move(tensor: Tensor, device: torch.device) -> Tensor:
    """Move a tensor to a device; a copy from host memory to a GPU does not block."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def plan_batches(lengths: NDArray[np.int64], token_budget: int) -> list[NDArray[np.int64]]:
    """Group texts so that each group, padded to its longest text, stays within the budget.

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
    """Pad the chosen texts: input_ids, attention_mask, token_type_ids, each (len(rows), longest)."""
    lengths = tokens.lengths[rows]
    width = int(lengths.max())
    column = np.arange(width)
    mask = column[None, :] < lengths[:, None]
    # Positions after a text's end are any valid index; padding overwrites them.
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
    """Yield row numbers and padded tensors, batch by batch."""
    for rows in plan_batches(tokens.lengths, token_budget):
        yield rows, pad(tokens, rows, pad_id)


@dataclass(frozen=True)
class PaddedGroups:
    """The texts of a training batch, padded in groups of similar length.

    Args:
        groups: padded tensors of each group, as from :func:`pad`.
        places_N: int64, position of each text of the batch in the concatenated groups.
    """

    groups: tuple[dict[str, Tensor], ...]
    places_N: Tensor

    def to(self, device: torch.device) -> PaddedGroups:
        """Move the groups to a device; copies to it do not block."""
        if device.type == "cpu":
            return self
        groups = tuple({key: move(value, device) for key, value in group.items()} for group in self.groups)
        return PaddedGroups(groups, move(self.places_N, device))


def plan_groups(lengths: NDArray[np.int64], overhead: int, max_tokens: int | None = None) -> list[NDArray[np.int64]]:
    """Cut texts, sorted by length, into the groups that cost least.

    A group costs its tokens, padded to its longest text, and ``overhead`` tokens for its forward pass. The cut is
    optimal: a dynamic program over the distinct lengths.

    Args:
        lengths: tokens of each text.
        overhead: cost of a further pass, in tokens.
        max_tokens: maximum of tokens of a group, padding included; a longer text has its own group. Unlimited if None.

    >>> [group.tolist() for group in plan_groups(np.array([3, 90, 4, 88]), overhead=10)]
    [[1, 3], [2, 0]]
    >>> [group.tolist() for group in plan_groups(np.array([3, 90, 4, 88]), overhead=1000)]
    [[1, 3, 2, 0]]
    >>> [group.tolist() for group in plan_groups(np.array([3, 90, 4, 88]), overhead=10, max_tokens=100)]
    [[1], [3], [2, 0]]
    """
    order = np.argsort(-lengths, kind="stable")
    longest, first = np.unique(-lengths[order], return_index=True)
    # Cutting between texts of the same length is never cheaper, so only the distinct lengths are tried.
    starts = np.append(first, len(order))
    widths = -longest
    cost = np.zeros(len(starts))
    cut = np.zeros(len(starts), dtype=np.int64)
    for end in range(1, len(starts)):
        options = cost[:end] + widths[:end] * (starts[end] - starts[:end]) + overhead
        cut[end] = int(np.argmin(options))
        cost[end] = options[cut[end]]
    bounds = [len(starts) - 1]
    while bounds[-1] > 0:
        bounds.append(int(cut[bounds[-1]]))
    bounds.reverse()
    groups = []
    for left, right in itertools.pairwise(bounds):
        size = len(order) if max_tokens is None else max(1, max_tokens // int(max(widths[left], 1)))
        groups += [order[at : min(at + size, starts[right])] for at in range(starts[left], starts[right], size)]
    return groups


def pad_in_groups(tokens: Tokens, pad_id: int, overhead: int, max_tokens: int | None = None) -> PaddedGroups:
    """Pad all texts of a batch, in the groups of :func:`plan_groups`."""
    groups = plan_groups(tokens.lengths, overhead, max_tokens)
    places = np.empty(tokens.num_rows, dtype=np.int64)
    places[np.concatenate(groups)] = np.arange(tokens.num_rows)
    return PaddedGroups(tuple(pad(tokens, rows, pad_id) for rows in groups), torch.from_numpy(places))


def widen(encoded: Tensor, most: int) -> Tensor:
    """Pad encodings (N, M, D) to (N, most, D); encodings with a vector per text, (N, D), stay as they are."""
    if encoded.ndim == 2 or encoded.shape[1] == most:
        return encoded
    return torch.nn.functional.pad(encoded, (0, 0, 0, most - encoded.shape[1]))


def concatenate(encoded: Sequence[Tensor]) -> Tensor:
    """Concatenate the encodings of several groups, padded to the most vectors of a text."""
    most = max(vectors.shape[1] for vectors in encoded)
    return torch.cat([widen(vectors, most) for vectors in encoded])
