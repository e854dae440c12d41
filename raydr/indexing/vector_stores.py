"""Stores of vectors, several a passage: in half precision, or as codes of a FAISS index."""

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
    """All vectors of a shard, by index."""

    device: torch.device

    def take(self, places: Tensor) -> Tensor:
        """Return the vectors at ``places``, (..., D), on the device."""


class HalfVectors:
    """Half-precision vectors on a device.

    Args:
        pieces: vectors of consecutive passages.
        device: device of the vectors, for example ``cuda``.
    """

    def __init__(self, pieces: Sequence[VectorSets], device: str) -> None:
        num = sum(len(piece.vectors_TD) for piece in pieces)
        self._vectors_TD = torch.empty((num, pieces[0].dim if pieces else 0), dtype=torch.float16, device=device)
        self.device = self._vectors_TD.device
        at = 0
        for piece in pieces:
            end = at + len(piece.vectors_TD)
            # PyTorch needs writable arrays, and mapped files are read-only.
            self._vectors_TD[at:end] = torch.from_numpy(np.array(piece.vectors_TD)).to(device)
            at = end

    def take(self, places: Tensor) -> Tensor:
        # index_select is ten times faster than indexing by a tensor.
        vectors = self._vectors_TD.index_select(0, places.flatten()).view(*places.shape, -1)
        return vectors if vectors.is_cuda else vectors.float()


class ResidualBytes:
    """Vectors as cells and residuals of an ``IVF...,SQ8``, copied in passage order.

    FAISS decodes a vector at a time, which would dominate the search.

    Args:
        cells: index of all vectors, in passage order.
        device: device of returned vectors.
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
        # A code represents the middle of its interval.
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
    """Vectors as codes of a FAISS index, such as cells and residuals.

    Args:
        index: index of all vectors, in passage order; not copied.
        device: device of returned vectors.
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
    """Return the store that decodes an index's codes."""
    faiss = load_faiss()
    # A new name: the object behind it belongs to `index`, which must stay alive.
    actual = faiss.downcast_index(index)
    by_residual = isinstance(actual, faiss.IndexIVFScalarQuantizer) and actual.by_residual
    if by_residual and actual.sq.qtype == faiss.ScalarQuantizer.QT_8bit:
        return ResidualBytes(actual, device)
    return CodedVectors(index, device)
