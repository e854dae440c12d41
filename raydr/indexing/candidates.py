"""Passages with several vectors each: a FAISS index over all vectors proposes some, which are then scored exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from raydr.indexing.torch_sets import TorchSets


class CandidateSearch:
    """Searched as FAISS is; finds what :class:`~raydr.indexing.torch_sets.TorchSets` does among the candidates.

    The nearest vectors of each vector of the query are looked up. A passage's score is estimated as the sum, over the
    query's vectors, of the largest inner product with one of its vectors that was found; where none was, it cannot be
    larger than the smallest that was found, which is taken. The best by that estimate are the candidates, and scored by
    the score function. Where they are all passages the result is that of the exact search.

    The estimate is that of Lee et al. (NeurIPS 2023), XTR.

    Args:
        index: of all vectors, in the order of the passages.
        passages: their vectors.
        num_nearest: vectors that are looked for with each vector of a query.
        num_candidates: passages of a query that are scored.
    """

    def __init__(self, index: Any, passages: TorchSets, num_nearest: int, num_candidates: int) -> None:
        self._index = index
        self._passages = passages
        self._num_nearest = min(num_nearest, int(index.ntotal))
        self._num_candidates = num_candidates
        self.ntotal = passages.ntotal

    def search(self, queries: NDArray[np.float32], width: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Scores and rows of the best candidates of each query, best first, each (queries, width); row −1 for none."""
        scores_QK = np.full((len(queries), width), -np.inf, dtype=np.float32)
        rows_QK = np.full((len(queries), width), -1, dtype=np.int64)
        for at, (query, rows) in enumerate(zip(queries, self._candidates(queries), strict=True)):
            scores_N = self._passages.score_rows(torch.from_numpy(query).to(self._passages.device), rows)
            best = np.lexsort((rows, -scores_N))[:width]
            scores_QK[at, : len(best)], rows_QK[at, : len(best)] = scores_N[best], rows[best]
        return scores_QK, rows_QK

    def _candidates(self, queries: NDArray[np.float32]) -> list[NDArray[np.int64]]:
        """The candidates of each query, rows in ascending order."""
        queries_QMD = queries[:, None] if queries.ndim == 2 else queries
        there_QM = (queries_QMD != 0).any(axis=-1)
        scores_VK, places_VK = self._index.search(np.ascontiguousarray(queries_QMD[there_QM]), self._num_nearest)
        # Above what a passage gets whose vectors were not found.
        lowest_V = np.where(places_VK >= 0, scores_VK, np.inf).min(axis=1, keepdims=True)
        rows_VK = np.searchsorted(self._passages.starts, places_VK, side="right") - 1
        query_V = np.nonzero(there_QM)[0]
        return [
            self._best(*(one[query_V == at] for one in (rows_VK, scores_VK - lowest_V, places_VK >= 0)))
            for at in range(len(queries))
        ]

    def _best(
        self, rows_MK: NDArray[np.int64], above_MK: NDArray[np.float32], found_MK: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """The passages of the highest estimates, of those with a vector that was found."""
        vector_F, place_F = np.nonzero(found_MK)
        # FAISS returns the best first, so a passage's first vector among those of a query's vector is its largest.
        pairs_F = vector_F * self.ntotal + rows_MK[vector_F, place_F]
        pairs, first = np.unique(pairs_F, return_index=True)
        rows, passage = np.unique(pairs % self.ntotal, return_inverse=True)
        estimates = np.bincount(passage, above_MK[vector_F, place_F][first], minlength=len(rows))
        if len(rows) <= self._num_candidates:
            return rows
        return np.sort(rows[np.argsort(-estimates, kind="stable")[: self._num_candidates]])
