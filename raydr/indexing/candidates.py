"""Passages with several vectors each: a FAISS index over all vectors proposes some, which are then scored exactly."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from raydr.data.parts import offsets_of
from raydr.indexing.faiss_backend import load_faiss
from raydr.indexing.torch_search import TorchSets
from raydr.models.precision import torch_threads


class CandidateSearch:
    """A searcher with FAISS's interface that scores candidates as :class:`~raydr.indexing.torch_search.TorchSets` does.

    The nearest vectors of each vector of the query are looked up. A passage's score is estimated as the sum, over the
    query's vectors, of the largest inner product with one of its vectors that was found; where none was, it cannot be
    larger than the smallest that was found, which is taken. The best by that estimate are the candidates, and scored by
    the score function. Where they are all passages the result is that of the exact search.

    The estimate is that of Lee et al. (NeurIPS 2023), XTR.

    On a processor each thread looks up some of the vectors, and scores some of the candidates, by itself: a team of
    FAISS's threads and one of PyTorch's wait for each other's ends in loops, and take four times the processor's time.

    Args:
        index: of all vectors, in the order of the passages.
        passages: their vectors.
        num_nearest: vectors that are looked for with each vector of a query.
        num_candidates: passages of a query that are scored.
        num_threads: of a search.
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
        #: The passage that each vector is of.
        self._row_of_T = np.repeat(np.arange(self.ntotal, dtype=np.int32), np.diff(passages.starts))

    def search(self, queries: NDArray[np.float32], width: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return scores and rows of the best candidates of each query, best first, each (queries, width); row −1 for
        none."""
        scores_QK = np.full((len(queries), width), -np.inf, dtype=np.float32)
        rows_QK = np.full((len(queries), width), -1, dtype=np.int64)
        # A thread's own limit changes the limit of the process, too.
        with torch_threads(None):
            candidates = self._candidates(queries)
            # Few queries share theirs among the threads.
            pieces = max(1, self._num_threads // max(1, len(queries)))
            asked = [(query, rows[at::pieces]) for query, rows in enumerate(candidates) for at in range(pieces)]
            scored = list(self._threads.map(lambda share: self._score(queries[share[0]], share[1]), asked))
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
        """Return the candidates of each query, rows in ascending order."""
        queries_QMD = queries[:, None] if queries.ndim == 2 else queries
        is_vector_QM = (queries_QMD != 0).any(axis=-1)
        shares = np.array_split(np.ascontiguousarray(queries_QMD[is_vector_QM]), self._num_threads)
        results = list(self._threads.map(lambda share: self._index.search(share, self._num_nearest), shares))
        scores_VK, places_VK = (np.concatenate([result[at] for result in results]) for at in range(2))
        ends = offsets_of(is_vector_QM.sum(axis=1))
        each = [(scores_VK[start:end], places_VK[start:end]) for start, end in pairwise(ends)]
        return list(self._threads.map(lambda nearest: self._best(*nearest), each))

    def _best(self, scores_MK: NDArray[np.float32], places_MK: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the passages of the highest estimates for one query, of those with a vector near the query's."""
        estimates_N, is_near_N = np.zeros(self.ntotal), np.zeros(self.ntotal, dtype=np.bool_)
        largest_N = np.empty(self.ntotal)
        for scores_K, places_K in zip(scores_MK, places_MK, strict=True):
            is_filled_K = places_K >= 0
            if not is_filled_K.any():
                continue
            rows_F, scores_F = self._row_of_T[places_K[is_filled_K]], scores_K[is_filled_K].astype(np.float64)
            largest_N[:] = 0
            # FAISS returns the best first, and of a passage's vectors the last one that is written stays. Above what a
            # passage gets whose vectors were not found.
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
    """Make a thread compute without a team of others."""
    torch.set_num_threads(1)
    load_faiss(num_threads=1)
