"""Search of passages with several vectors: a FAISS index proposes candidates, which are scored exactly."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from raydr.data.parts import offsets_of
from raydr.indexing.config import SearchConfig
from raydr.indexing.faiss_backend import EXACT, configure_search, load_faiss
from raydr.indexing.shards import IndexShards
from raydr.indexing.torch_search import HalfVectors, TorchSets, VectorStore, coded_vectors
from raydr.models.precision import torch_threads


def open_sets(index: IndexShards, shard: int, config: SearchConfig, device: str, num_threads: int) -> Any:
    """Load a shard of passages with several vectors; the CPU searches an index that proposes candidates."""
    lengths_N = index.num_vectors(shard)
    if index.factory in EXACT:
        return TorchSets(lengths_N, HalfVectors(index.load_sets(shard), device), index.score)
    loaded = index.load(shard)
    configure_search(loaded, config.nprobe, config.ef_search, config.refine_factor)
    vectors: VectorStore = (
        coded_vectors(loaded, device) if index.scored_from_codes else HalfVectors(index.load_sets(shard), device)
    )
    passages = TorchSets(lengths_N, vectors, index.score)
    return CandidateSearch(loaded, passages, config.num_nearest, config.num_candidates, num_threads)


class CandidateSearch:
    """Searcher with FAISS's interface that scores candidates like :class:`~raydr.indexing.torch_search.TorchSets`.

    It looks up the nearest vectors of each query vector. A passage's score is estimated as the sum over query vectors
    of the largest inner product with one of its vectors that was returned. If none was returned, the smallest returned
    product is its upper bound and is used instead. The passages with the best estimates are scored by the score
    function. If these are all passages, the search is exact.

    The estimate is XTR's, of Lee et al. (NeurIPS 2023).

    On CPUs each thread looks up some vectors and scores some candidates alone: thread teams of FAISS and PyTorch wait
    for each other in busy loops, at four times the CPU time.

    Args:
        index: index of all vectors, in passage order.
        passages: passages with their vectors.
        num_nearest: vectors looked up for each query vector.
        num_candidates: passages scored for each query.
        num_threads: threads of a search.
    """

    def __init__(
        self, index: Any, passages: TorchSets, num_nearest: int, num_candidates: int, num_threads: int = 1
    ) -> None:
        self._index = index
        self._passages = passages
        self._num_nearest = min(num_nearest, int(index.ntotal))
        self._num_candidates = num_candidates
        self._num_threads = num_threads
        self._threads = ThreadPoolExecutor(num_threads, initializer=_alone)
        self.ntotal = passages.ntotal
        #: Passage of each vector.
        self._row_of_T = np.repeat(np.arange(self.ntotal, dtype=np.int32), np.diff(passages.starts))

    def search(self, queries: NDArray[np.float32], width: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return scores and rows of each query's best candidates, best first, each (queries, width); row −1 if none."""
        scores_QK = np.full((len(queries), width), -np.inf, dtype=np.float32)
        rows_QK = np.full((len(queries), width), -1, dtype=np.int64)
        # A thread's own limit would change the limit of the process.
        with torch_threads(None):
            candidates = self._candidates(queries)
            # With few queries, threads share the vectors of a query.
            pieces = max(1, self._num_threads // max(1, len(queries)))
            work = [(query, rows[at::pieces]) for query, rows in enumerate(candidates) for at in range(pieces)]
            scored = list(self._threads.map(lambda share: self._score(queries[share[0]], share[1]), work))
        for at, rows in enumerate(candidates):
            scores_N = np.empty(len(rows), dtype=np.float32)
            for piece in range(pieces):
                scores_N[piece::pieces] = scored[at * pieces + piece]
            best = np.lexsort((rows, -scores_N))[:width]
            scores_QK[at, : len(best)], rows_QK[at, : len(best)] = scores_N[best], rows[best]
        return scores_QK, rows_QK

    def _score(self, query: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return self._passages.score_rows(torch.from_numpy(query).to(self._passages.device), rows)

    def _candidates(self, queries: NDArray[np.float32]) -> list[NDArray[np.int64]]:
        """Return the candidate rows of each query, ascending."""
        queries_QMD = queries[:, None] if queries.ndim == 2 else queries
        is_vector_QM = (queries_QMD != 0).any(axis=-1)
        shares = np.array_split(np.ascontiguousarray(queries_QMD[is_vector_QM]), self._num_threads)
        results = list(self._threads.map(lambda share: self._index.search(share, self._num_nearest), shares))
        scores_VK, places_VK = (np.concatenate([result[at] for result in results]) for at in range(2))
        ends = offsets_of(is_vector_QM.sum(axis=1))
        each = [(scores_VK[start:end], places_VK[start:end]) for start, end in pairwise(ends)]
        return list(self._threads.map(lambda nearest: self._best(*nearest), each))

    def _best(self, scores_MK: NDArray[np.float32], places_MK: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the passages with the highest estimates for a query."""
        estimates_N, is_near_N = np.zeros(self.ntotal), np.zeros(self.ntotal, dtype=np.bool_)
        largest_N = np.empty(self.ntotal)
        for scores_K, places_K in zip(scores_MK, places_MK, strict=True):
            is_filled_K = places_K >= 0
            if not is_filled_K.any():
                continue
            rows_F, scores_F = self._row_of_T[places_K[is_filled_K]], scores_K[is_filled_K].astype(np.float64)
            largest_N[:] = 0
            # FAISS returns the best first; reversed, the last write to a passage is its best. Values are relative to
            # the estimate of passages without a returned vector.
            largest_N[rows_F[::-1]] = (scores_F - scores_F.min())[::-1]
            estimates_N += largest_N
            is_near_N[rows_F] = True
        rows = np.flatnonzero(is_near_N)
        if len(rows) <= self._num_candidates:
            return rows
        estimates = estimates_N[rows]
        limit = np.partition(estimates, len(rows) - self._num_candidates)[len(rows) - self._num_candidates]
        above, at_limit = rows[estimates > limit], rows[estimates == limit]
        return np.sort(np.concatenate([above, at_limit[: self._num_candidates - len(above)]]))


def _alone() -> None:
    """Restrict a thread to computing without a thread team."""
    torch.set_num_threads(1)
    load_faiss().omp_set_num_threads(1)
