"""Exact search with PyTorch: for GPUs without FAISS support, and for scores that are no inner product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydr.data.embeddings import VectorSets
from raydr.data.parts import offsets_of
from raydr.indexing.faiss_backend import load_faiss
from raydr.models.scores.base import ScoreFunction

#: Bytes of scores held at once.
_SCORE_BYTES = 2**30
#: Vectors read from the FAISS index at once.
_READ_ROWS = 100_000


class TorchFlat:
    """Half-precision vectors on a device, with the search interface of an exact FAISS index.

    Scores are computed and summed in float32. Embeddings of raydr are half precision, so nothing is rounded.

    Args:
        vectors_ND: vectors in float16, on the searching device.
        score: score function of two vectors.
        score_bytes: memory for scores; more queries mean smaller blocks of vectors.
    """

    def __init__(self, vectors_ND: torch.Tensor, score: ScoreFunction, score_bytes: int = _SCORE_BYTES) -> None:
        self.ntotal = len(vectors_ND)
        self._score = score
        self._score_bytes = score_bytes
        self._vectors_ND = vectors_ND

    @classmethod
    def of_index(cls, index: Any, score: ScoreFunction, device: str, score_bytes: int = _SCORE_BYTES) -> TorchFlat:
        """Load the vectors of an exact FAISS index (:data:`raydr.indexing.faiss_backend.EXACT`) onto a device."""
        num_rows = int(index.ntotal)
        vectors_ND = torch.empty((num_rows, int(index.d)), dtype=torch.float16, device=device)
        # A new name: `index` owns the object behind it.
        actual = load_faiss().downcast_index(index)
        for start in range(0, num_rows, _READ_ROWS):
            rows = min(_READ_ROWS, num_rows - start)
            vectors_ND[start : start + rows] = torch.from_numpy(actual.reconstruct_n(start, rows)).to(device)
        return cls(vectors_ND, score, score_bytes)

    def search(self, queries: NDArray[np.float32], width: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return scores and rows of the ``width`` best vectors of each query, best first, each (queries, width).

        Like FAISS, it keeps any of the vectors that share the score at the cut.
        """
        device = self._vectors_ND.device
        queries_QD = torch.from_numpy(queries).to(device)
        half_QD = queries_QD.half()
        if torch.equal(half_QD.float(), queries_QD):
            # Half-precision products are faster, if the score has them.
            queries_QD = half_QD
        num_rows = max(width, self._score_bytes // (4 * max(1, len(queries))))
        scores_QK = torch.empty((len(queries), 0), dtype=torch.float32, device=device)
        rows_QK = torch.empty((len(queries), 0), dtype=torch.int64, device=device)
        for start in range(0, self.ntotal, num_rows):
            block_QN = self._score.all_pairs(queries_QD, self._vectors_ND[start : start + num_rows])
            best_QK = block_QN.topk(min(width, block_QN.shape[1]), dim=1)
            scores_QK = torch.cat([scores_QK, best_QK.values], dim=1)
            rows_QK = torch.cat([rows_QK, best_QK.indices + start], dim=1)
            if scores_QK.shape[1] > width:
                scores_QK, places_QK = scores_QK.topk(width, dim=1)
                rows_QK = rows_QK.gather(1, places_QK)
        return scores_QK.cpu().numpy(), rows_QK.cpu().numpy()


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


#: Padded vectors in a block of passages, by kind of device: enough to fit a CPU's caches, or occupy a GPU.
_BLOCK_VECTORS = {"cpu": 8_192, "cuda": 200_000}


class TorchSets:
    """Passages of a shard, on the device of their vectors, with FAISS's search interface.

    Scores are computed and summed in float32, by the score function of training and judging.

    Args:
        lengths_N: vectors of each passage.
        vectors: all vectors, in passage order.
        score: score function of two sets of vectors.
        block_vectors: vectors in a block; None: a default for the device.
    """

    def __init__(
        self,
        lengths_N: NDArray[np.int64],
        vectors: VectorStore,
        score: ScoreFunction,
        block_vectors: int | None = None,
    ) -> None:
        self._vectors = vectors
        self._score = score
        self._block_vectors = block_vectors or _BLOCK_VECTORS[vectors.device.type]
        self.ntotal = len(lengths_N)
        #: Start of each passage's vectors, and the total at the end.
        self.starts = offsets_of(lengths_N)
        # Sorting by length reduces padding.
        self._by_length = np.argsort(lengths_N, kind="stable")
        self.device = vectors.device
        self._starts = torch.from_numpy(self.starts).to(self.device)

    def search(self, queries: NDArray[np.float32], width: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return scores and rows of the ``width`` best passages of each query, best first, each (queries, width).

        Like FAISS, it keeps any of the passages that share the score at the cut.
        """
        device = self.device
        vectors = torch.from_numpy(queries).to(device)
        scores_QK = torch.empty((len(queries), 0), dtype=torch.float32, device=device)
        rows_QK = torch.empty((len(queries), 0), dtype=torch.int64, device=device)
        for rows_N in self._blocks(self._by_length):
            scores_QN = self._score.all_pairs(vectors, self._padded(rows_N))
            scores_QK = torch.cat([scores_QK, scores_QN], dim=1)
            rows_QK = torch.cat([rows_QK, rows_N.expand(len(queries), -1)], dim=1)
            if scores_QK.shape[1] > width:
                scores_QK, places_QK = scores_QK.topk(width, dim=1)
                rows_QK = rows_QK.gather(1, places_QK)
        order_QK = scores_QK.argsort(dim=1, descending=True)
        return scores_QK.gather(1, order_QK).cpu().numpy(), rows_QK.gather(1, order_QK).cpu().numpy()

    def score_rows(self, query: Tensor, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Score passages for a query, (M, D) or (D,), in the order of the rows."""
        order = np.argsort(self.starts[rows + 1] - self.starts[rows], kind="stable")
        scores_N = np.empty(len(rows), dtype=np.float32)
        at = 0
        for rows_N in self._blocks(rows[order]):
            block_N = self._score.all_pairs(query.unsqueeze(0), self._padded(rows_N))[0]
            scores_N[order[at : at + len(rows_N)]] = block_N.cpu().numpy()
            at += len(rows_N)
        return scores_N

    def _blocks(self, rows_N: NDArray[np.int64]) -> Iterator[Tensor]:
        """Yield rows sorted by length, in blocks whose padded vectors fit the limit."""
        lengths_N = self.starts[rows_N + 1] - self.starts[rows_N]
        start = 0
        while start < len(rows_N):
            # The last row is the longest, so the block is bounded by its length.
            stop = min(len(rows_N), start + max(1, self._block_vectors // max(1, int(lengths_N[start]))))
            while stop > start + 1 and int(lengths_N[stop - 1]) * (stop - start) > self._block_vectors:
                stop = start + max(1, self._block_vectors // int(lengths_N[stop - 1]))
            yield torch.from_numpy(rows_N[start:stop]).to(self.device)
            start = stop

    def _padded(self, rows_N: Tensor) -> Tensor:
        """Return the vectors of passages, (N, M, D), padded with zeros."""
        starts_N, ends_N = self._starts[rows_N], self._starts[rows_N + 1]
        place_NM = starts_N[:, None] + torch.arange(int((ends_N - starts_N).max()), device=rows_N.device)
        is_vector_NM = place_NM < ends_N[:, None]
        vectors = self._vectors.take(place_NM.clamp(max=int(self.starts[-1]) - 1))
        return vectors if bool(is_vector_NM.all()) else vectors.masked_fill_(~is_vector_NM.unsqueeze(-1), 0)
