"""Where the vectors of passages with several each are read from: half precision, or the codes of a FAISS index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydr.data.vector_sets import VectorSets
from raydr.indexing.backend import load_faiss


class VectorStore(Protocol):
    """All vectors of a shard, by their places."""

    device: torch.device

    def take(self, places: Tensor) -> Tensor:
        """The vectors at some places, (..., D), on the device."""


class HalfVectors:
    """Vectors in half precision on a device.

    Args:
        pieces: of consecutive passages.
        device: where they go, for example ``cuda``.
    """

    def __init__(self, pieces: Sequence[VectorSets], device: str) -> None:
        num = sum(len(piece.vectors_TD) for piece in pieces)
        self._vectors_TD = torch.empty((num, pieces[0].dim if pieces else 0), dtype=torch.float16, device=device)
        self.device = self._vectors_TD.device
        at = 0
        for piece in pieces:
            end = at + len(piece.vectors_TD)
            # Mapped files cannot be written to, and PyTorch wants what can.
            self._vectors_TD[at:end] = torch.from_numpy(np.array(piece.vectors_TD)).to(device)
            at = end

    def take(self, places: Tensor) -> Tensor:
        return self._vectors_TD[places]


class CodedVectors:
    """Vectors as a FAISS index has them: cells and residual codes, for example.

    Args:
        index: of all vectors, in the order of the passages; not copied.
        device: where vectors are wanted.
    """

    def __init__(self, index: Any, device: str) -> None:
        self._index = index
        self.device = torch.device(device)
        faiss = load_faiss()
        # A new name: `index` owns the object behind it.
        actual = faiss.downcast_index(index)
        if isinstance(actual, faiss.IndexIVF):
            actual.make_direct_map()

    def take(self, places: Tensor) -> Tensor:
        # Padding repeats places, and decoding takes time.
        unique, inverse = np.unique(places.cpu().numpy(), return_inverse=True)
        decoded: NDArray[np.float32] = self._index.reconstruct_batch(unique)
        return torch.from_numpy(decoded[inverse.reshape(places.shape)]).to(self.device)
