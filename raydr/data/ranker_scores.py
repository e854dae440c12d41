"""A ranker's scores of training pairs, laid beside the examples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydr.data.corpus import Corpus
from raydr.data.examples import Examples, Ragged
from raydr.errors import DataError


@dataclass(frozen=True)
class RankerScores:
    """Scores of the positives and of the candidates of each query, float32, in the order of the examples."""

    positives: Ragged
    negatives: Ragged

    def of_positive(self, examples: Examples, at: int, row: int) -> float:
        """The score of the positive of a query that has a corpus row."""
        return float(self.positives[at][np.flatnonzero(examples.positives[at] == row)[0]])


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
    values = scores["score"].to_numpy().astype(np.float32)[known][first]

    def find(pairs: Ragged, what: str) -> Ragged:
        asked = np.repeat(np.arange(len(pairs)), np.diff(pairs.offsets)) * len(corpus) + pairs.values
        places = np.searchsorted(keys, asked)
        found = (places < len(keys)) & (keys[np.minimum(places, len(keys) - 1)] == asked) if len(keys) else asked < 0
        if not found.all():
            query, row = divmod(int(asked[np.flatnonzero(~found)[0]]), len(corpus))
            raise DataError(
                f"{int((~found).sum())} of {len(asked)} {what} have no score of the ranker, the first is passage "
                f"{corpus.ids(np.array([row]))[0]!r} of query {examples.query_ids[query]!r}: were other candidates "
                "scored than are trained on?"
            )
        return Ragged(_taken(values, places), pairs.offsets)

    return RankerScores(find(examples.positives, "positives"), find(examples.negatives, "candidates"))


def _taken(values: NDArray[np.float32], places: NDArray[np.int64]) -> NDArray[np.float32]:
    return values[places] if len(places) else np.zeros(0, dtype=np.float32)
