"""Scores of pairs of ids: what a worker holds that reranks a run, judges candidates, or asks a teacher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from raydr.data.annotations import query_texts
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.noise.candidates import Candidates

if TYPE_CHECKING:
    from raydr.models.pair_scoring import DualEncoderScorer, FloatArray, PairScorer


class CandidateScores(NamedTuple):
    """What a model says of candidates.

    Args:
        scores_M: of each candidate with its query.
        best_Q: of each query's best scored positive; −inf where it has none. None if nobody asked.
        likeness_M: of each candidate with the positive of its query that it is most like, as a share of that positive's
            similarity with itself, 0 at least. None if nobody asked.
    """

    scores_M: FloatArray
    best_Q: FloatArray | None = None
    likeness_M: FloatArray | None = None


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

    def candidates(
        self, found: Candidates, positives: Mapping[str, Sequence[str]], likeness: bool = False
    ) -> CandidateScores:
        """Scores of candidates and of their queries' positives.

        Args:
            found: the candidates.
            positives: of each query; a query may have none.
            likeness: whether candidates are compared with the positives too, which a retriever can.
        """
        given = [positives.get(query_id, ()) for query_id in found.query_ids]
        ids = [*found.table["passage_id"].to_pylist(), *(one for those in given for one in those)]
        passages, passage_P = np.unique(np.asarray(ids, dtype=object), return_inverse=True)
        texts = self.corpus.texts(self.corpus.rows_of(passages.tolist()))
        of_positive = np.repeat(np.arange(len(given)), list(map(len, given)))
        query_P, passage_P = np.concatenate([found.query_M, of_positive]), passage_P.astype(np.int64)
        asked = query_texts(self.data, self.split, found.query_ids)
        num, likeness_M = len(found.table), None
        if likeness:
            retriever = cast("DualEncoderScorer", self.scorer)
            # Each candidate beside each positive of its query.
            blocks = [np.arange(found.offsets[at], found.offsets[at + 1]) for at in of_positive]
            candidate_L = np.concatenate([np.zeros(0, dtype=np.int64), *blocks])
            positive_L = np.repeat(passage_P[num:], list(map(len, blocks)))
            compared = positive_L, passage_P[candidate_L]
            scores_P, like_L = retriever.score_and_compare(asked, texts, query_P, passage_P, *compared)
            likeness_M = np.zeros(num)
            np.maximum.at(likeness_M, candidate_L, like_L)
        else:
            scores_P = self.scorer.score(asked, texts, query_P, passage_P)
        best_Q = np.full(len(given), -np.inf)
        np.maximum.at(best_Q, of_positive, scores_P[num:])
        return CandidateScores(scores_P[:num], best_Q, likeness_M)
