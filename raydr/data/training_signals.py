"""Signals of other models for training: a guide's vectors, and a ranker's scores, by example and corpus row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydr.data.corpus import Corpus
from raydr.data.embeddings import Embeddings
from raydr.data.examples import Examples, Ragged
from raydr.errors import DataError


@dataclass(frozen=True)
class GuideOfExamples:
    """The guide's vectors in the order of some training examples.

    Args:
        queries: its vectors of the split's queries.
        query_rows: of each example among them.
        passages: its vectors of the corpus, in the order of its rows.
    """

    queries: Embeddings
    query_rows: NDArray[np.int64]
    passages: Embeddings

    def of_queries(self, at: NDArray[np.int64]) -> NDArray[np.float16]:
        """Return vectors of the queries of some examples, shape (Q, dim)."""
        return self.queries.take(self.query_rows[at])

    def of_passages(self, rows: NDArray[np.int64]) -> NDArray[np.float16]:
        """Return vectors of some corpus rows, shape (P, dim)."""
        return self.passages.take(rows)


@dataclass(frozen=True)
class GuideVectors:
    """The guide's vectors of the queries of a split and of the corpus."""

    queries: Embeddings
    passages: Embeddings

    def beside(self, query_ids: Sequence[str]) -> GuideOfExamples:
        """Align the vectors with training examples.

        Args:
            query_ids: of the examples.

        Raises:
            DataError: a query has no vector.
        """
        parts = [self.queries.ids(part).combine_chunks() for part in range(len(self.queries.part_names))]
        rows = pc.index_in(pa.array(query_ids, pa.string()), value_set=pa.concat_arrays(parts))
        if rows.null_count:
            missing = query_ids[rows.is_null().to_numpy(zero_copy_only=False).argmax()]
            raise DataError(f"the guide's vectors at {self.queries.artifact.folder} have none of query {missing!r}")
        return GuideOfExamples(self.queries, rows.to_numpy().astype(np.int64), self.passages)


class PairScores(Protocol):
    """A ranker's scores of the examples' pairs: saved scores, or a ranker that scores on demand."""

    def of(self, query_P: NDArray[np.int64], passage_P: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return scores, shape (P,), of queries at positions of the examples with passages at rows of the corpus."""


@dataclass(frozen=True)
class RankerScores:
    """Saved scores.

    Args:
        keys: int64, shape (P,), ascending: a pair's position of the query · num_passages + row of the passage.
        scores: float32, shape (P,).
        num_passages: of the corpus.
    """

    keys: NDArray[np.int64]
    scores: NDArray[np.float32]
    num_passages: int

    def of(self, query_P: NDArray[np.int64], passage_P: NDArray[np.int64]) -> NDArray[np.float32]:
        return self.scores[np.searchsorted(self.keys, self.keys_of(query_P, passage_P))]

    def keys_of(self, query_P: NDArray[np.int64], passage_P: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return keys of pairs, whether they have a score or not."""
        return query_P * self.num_passages + passage_P


def join_ranker_scores(examples: Examples, scores: pa.Table, corpus: Corpus) -> RankerScores:
    """Find the score of every positive and of every candidate that may be drawn.

    Args:
        examples: what is trained on.
        scores: (query_id, passage_id, score), in any order; more than is asked for does no harm.
        corpus: that the ids refer to.

    Raises:
        DataError: a pair has no score.
    """
    owner = pc.index_in(scores["query_id"], value_set=pa.array(examples.query_ids, pa.string()))
    owner_P = np.asarray(pc.fill_null(owner, -1).to_numpy(), dtype=np.int64)
    known = owner_P >= 0
    rows_P = corpus.rows_of_column(scores["passage_id"].filter(pa.array(known)))
    keys, first = np.unique(owner_P[known] * len(corpus) + rows_P, return_index=True)
    joined = RankerScores(keys, scores["score"].to_numpy().astype(np.float32)[known][first], len(corpus))

    def require(pairs: Ragged, what: str) -> None:
        query_P = np.repeat(np.arange(len(pairs)), np.diff(pairs.offsets))
        missing = np.flatnonzero(~np.isin(joined.keys_of(query_P, pairs.values), keys))
        if len(missing):
            query_id = examples.query_ids[query_P[missing[0]]]
            passage_id = corpus.ids(pairs.values[missing[:1]])[0]
            raise DataError(
                f"{len(missing)} of {len(query_P)} {what} have no score of the ranker, the first is passage "
                f"{passage_id!r} of query {query_id!r}: were other candidates scored than are trained on?"
            )

    require(examples.positives, "positives")
    require(examples.negatives, "candidates")
    return joined
