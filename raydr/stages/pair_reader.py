"""Scores of pairs of ids: what a worker holds that reranks a run, judges candidates, or asks a teacher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from raydr.data.annotations import query_texts
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.noise.candidates import Candidates

if TYPE_CHECKING:
    from raydr.models.pair_scoring import FloatArray, PairScorer


@dataclass(frozen=True)
class PairReader:
    """A model with the texts that it is asked about.

    Args:
        data: has the queries.
        corpus: has the passages.
        split: of the queries.
        scorer: the model, loaded.
    """

    data: Dataset
    corpus: Corpus
    split: str
    scorer: PairScorer

    def scores(self, query_ids: list[str], passage_ids: list[str]) -> FloatArray:
        """Scores, shape (P,), of the pairs (query_ids[i], passage_ids[i]).

        Raises:
            DataError: a query is not in the split, or a passage not in the corpus.
        """
        queries, query_P = np.unique(np.asarray(query_ids, dtype=object), return_inverse=True)
        passages, passage_P = np.unique(np.asarray(passage_ids, dtype=object), return_inverse=True)
        texts = self.corpus.texts(self.corpus.rows_of(passages.tolist()))
        asked = query_texts(self.data, self.split, queries.tolist())
        return self.scorer.score(asked, texts, query_P.astype(np.int64), passage_P.astype(np.int64))

    def candidates(self, found: Candidates, positives: Mapping[str, Sequence[str]]) -> tuple[FloatArray, FloatArray]:
        """Scores, shape (M,), of candidates, and (Q,), of each query's best scored positive: −inf where it has none."""
        given = [positives.get(query_id, ()) for query_id in found.query_ids]
        ids = [*found.table["passage_id"].to_pylist(), *(one for those in given for one in those)]
        passages, passage_P = np.unique(np.asarray(ids, dtype=object), return_inverse=True)
        texts = self.corpus.texts(self.corpus.rows_of(passages.tolist()))
        query_P = np.concatenate([found.query_M, np.repeat(np.arange(len(given)), list(map(len, given)))])
        asked = query_texts(self.data, self.split, found.query_ids)
        scores_P = self.scorer.score(asked, texts, query_P, passage_P.astype(np.int64))
        num, best_Q = len(found.table), np.full(len(given), -np.inf)
        np.maximum.at(best_Q, query_P[num:], scores_P[num:])
        return scores_P[:num], best_Q
