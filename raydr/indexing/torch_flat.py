"""Exact search with PyTorch: for GPUs where the installed FAISS has none, and for scores that are no inner product."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from raydr.indexing.backend import load_faiss
from raydr.models.scores.base import ScoreFunction

#: Bytes of scores that are held at a time.
_SCORE_BYTES = 2**30
#: Vectors read from the FAISS index at a time.
_READ_ROWS = 100_000


class TorchFlat:
    """Vectors in half precision on a device; searched as an exact FAISS index is.

    Scores are computed and summed in float32. Vectors and queries that come from raydr's embeddings are half-precision
    numbers already, so nothing is rounded.

    Args:
        vectors_ND: in float16, on the device that searches.
        score: of a query's and a passage's vector.
        score_bytes: memory for scores; fewer vectors are looked at a time if there are more queries.
    """

    def __init__(self, vectors_ND: torch.Tensor, score: ScoreFunction, score_bytes: int = _SCORE_BYTES) -> None:
        self.ntotal = len(vectors_ND)
        self._score = score
        self._score_bytes = score_bytes
        self._vectors_ND = vectors_ND

    @classmethod
    def of_index(cls, index: Any, score: ScoreFunction, device: str, score_bytes: int = _SCORE_BYTES) -> TorchFlat:
        """The vectors of a FAISS index of one of the kinds in :data:`raydr.indexing.factory.EXACT`, on a device."""
        num_rows = int(index.ntotal)
        vectors_ND = torch.empty((num_rows, int(index.d)), dtype=torch.float16, device=device)
        # A new name: `index` owns the object behind it.
        actual = load_faiss().downcast_index(index)
        for start in range(0, num_rows, _READ_ROWS):
            rows = min(_READ_ROWS, num_rows - start)
            vectors_ND[start : start + rows] = torch.from_numpy(actual.reconstruct_n(start, rows)).to(device)
        return cls(vectors_ND, score, score_bytes)

    def search(self, queries: NDArray[np.float32], width: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Scores and rows of the ``width`` best vectors of each query, best first, each (queries, width).

        Like FAISS, it keeps any of the vectors that share the score at the cut.
        """
        device = self._vectors_ND.device
        queries_QD = torch.from_numpy(queries).to(device)
        half_QD = queries_QD.half()
        if torch.equal(half_QD.float(), queries_QD):
            # A product of half-precision numbers is quicker, where a score has one.
            queries_QD = half_QD
        num_rows = max(width, self._score_bytes // (4 * max(1, len(queries))))
        scores_QK = torch.empty((len(queries), 0), dtype=torch.float32, device=device)
        rows_QK = torch.empty((len(queries), 0), dtype=torch.int64, device=device)
        for start in range(0, self.ntotal, num_rows):
            found_QN = self._score.all_pairs(queries_QD, self._vectors_ND[start : start + num_rows])
            best_QK = found_QN.topk(min(width, found_QN.shape[1]), dim=1)
            scores_QK = torch.cat([scores_QK, best_QK.values], dim=1)
            rows_QK = torch.cat([rows_QK, best_QK.indices + start], dim=1)
            if scores_QK.shape[1] > width:
                scores_QK, places_QK = scores_QK.topk(width, dim=1)
                rows_QK = rows_QK.gather(1, places_QK)
        return scores_QK.cpu().numpy(), rows_QK.cpu().numpy()
