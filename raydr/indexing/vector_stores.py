"""Where the vectors of passages with several each are read from: half precision, or the codes of a FAISS index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydr.data.embeddings import VectorSets
from raydr.indexing.faiss_backend import load_faiss


class VectorStore(Protocol):
    """All vectors of a shard, by their places."""

    device: torch.device

    def take(self, places: Tensor) -> Tensor:
        """Return the vectors at some places, (..., D), on the device."""


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
        # Ten times as quick as indexing by a tensor.
        vectors = self._vectors_TD.index_select(0, places.flatten()).view(*places.shape, -1)
        return vectors if vectors.is_cuda else vectors.float()


class ResidualBytes:
    """Vectors as the cells and residuals of an ``IVF...,SQ8`` have them, copied in the order of the passages.

    FAISS decodes one vector at a time, which takes most of a search.

    Args:
        cells: the index of all vectors, in the order of the passages.
        device: where vectors are wanted.
    """

    def __init__(self, cells: Any, device: str) -> None:
        faiss = load_faiss()
        lists, dim = cells.invlists, int(cells.d)
        codes_TD = np.empty((int(cells.ntotal), dim), dtype=np.uint8)
        cell_T = np.empty(len(codes_TD), dtype=np.int32)
        for cell in range(int(cells.nlist)):
            if size := int(lists.list_size(cell)):
                places = faiss.rev_swig_ptr(lists.get_ids(cell), size)
                codes_TD[places] = faiss.rev_swig_ptr(lists.get_codes(cell), size * dim).reshape(size, dim)
                cell_T[places] = cell
        lowest, width = faiss.vector_to_array(cells.sq.trained).reshape(2, dim)
        # A code stands for the middle of its interval.
        starts_CD = faiss.downcast_index(cells.quantizer).reconstruct_n(0, int(cells.nlist)) + lowest + width / 510
        self.device = torch.device(device)
        self._codes_TD, self._cell_T = torch.from_numpy(codes_TD).to(device), torch.from_numpy(cell_T).to(device)
        self._starts_CD, self._step_D = (torch.from_numpy(tensor).to(device) for tensor in (starts_CD, width / 255))

    def take(self, places: Tensor) -> Tensor:
        at = places.flatten()
        starts = self._starts_CD.index_select(0, self._cell_T.index_select(0, at))
        vectors = torch.addcmul(starts, self._codes_TD.index_select(0, at).float(), self._step_D)
        return vectors.view(*places.shape, -1)


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
        decoded: NDArray[np.float32] = self._index.reconstruct_batch(places.flatten().cpu().numpy())
        return torch.from_numpy(decoded).to(self.device).view(*places.shape, -1)


def coded_vectors(index: Any, device: str) -> VectorStore:
    """Decode the vectors that an index's codes stand for."""
    faiss = load_faiss()
    # A new name: the object behind it belongs to `index`, which must stay alive.
    actual = faiss.downcast_index(index)
    by_residual = isinstance(actual, faiss.IndexIVFScalarQuantizer) and actual.by_residual
    if by_residual and actual.sq.qtype == faiss.ScalarQuantizer.QT_8bit:
        return ResidualBytes(actual, device)
    return CodedVectors(index, device)
