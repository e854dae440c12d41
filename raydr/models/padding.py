"""Encodings of several vectors a text, padded with zeros to the same number."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def widen(encoded: Tensor, most: int) -> Tensor:
    """Encodings (N, M, D) padded to (N, most, D); those of one vector a text, (N, D), as they are."""
    if encoded.ndim == 2 or encoded.shape[1] == most:
        return encoded
    return torch.nn.functional.pad(encoded, (0, 0, 0, most - encoded.shape[1]))


def concatenate(encoded: Sequence[Tensor]) -> Tensor:
    """The encodings of several groups of texts, padded to the most vectors of any."""
    most = max(one.shape[1] for one in encoded)
    return torch.cat([widen(one, most) for one in encoded])
