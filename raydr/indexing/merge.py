"""Exact merging of the results of shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydr.data.schema import RUNS


@dataclass(frozen=True)
class TopRows:
    """The best rows of queries, best first.

    Rows are ordered by descending score, then by row, so that the order is unique. Unfilled places have row −1 and
    score −inf.
    """

    #: Similarities, shape (queries, top_k).
    scores: NDArray[np.float32]
    #: Row of each passage in the corpus, shape (queries, top_k).
    rows: NDArray[np.int64]

    @property
    def top_k(self) -> int:
        return int(self.rows.shape[1])


def best(scores: NDArray[np.float32], rows: NDArray[np.int64], top_k: int) -> TopRows:
    """Return the ``top_k`` best candidates of each query, from candidates in any order.

    >>> top = best(np.array([[1, 3, 3]], dtype=np.float32), np.array([[5, 9, 2]]), top_k=2)
    >>> top.rows.tolist(), top.scores.tolist()
    ([[2, 9]], [[3.0, 3.0]])
    """
    scores = np.where(rows < 0, np.float32(-np.inf), scores)
    # Unfilled places follow all passages of the same score.
    order = np.lexsort((np.where(rows < 0, np.iinfo(np.int64).max, rows), -scores), axis=-1)[:, :top_k]
    return TopRows(np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1))


def merge(parts: Sequence[TopRows], top_k: int) -> TopRows:
    """Merge the ``top_k`` best of all shards.

    Each shard must contribute its own ``top_k`` best (or all it has); the result then equals a search of an unsharded
    index.

    Args:
        parts: results of each shard for the same queries, with corpus rows.
    """
    if len(parts) == 1 and parts[0].top_k == top_k:
        return parts[0]
    return best(
        np.concatenate([part.scores for part in parts], axis=1),
        np.concatenate([part.rows for part in parts], axis=1),
        top_k,
    )


def rank_top_rows(query_ids: pa.Array, passage_ids: pa.Array, top: TopRows) -> pa.Table:
    """Return the top rows as a table of the runs schema, without unfilled places.

    Equal scores get trec_eval's order (passage id descending, as bytes). Other rows are already in order, which makes
    this much faster than :func:`raydr.artefacts.run.rank_rows`, with the same result.

    Args:
        query_ids: id of each query of ``top``.
        passage_ids: ids of the filled places, query by query.
    """
    filled = top.rows >= 0
    query, place = np.nonzero(filled)
    scores = top.scores[filled]
    same = (query[1:] == query[:-1]) & (scores[1:] == scores[:-1])
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    if len(tied):
        table = pa.table({"query": query[tied], "score": scores[tied], "passage_id": passage_ids.take(pa.array(tied))})
        keys = [("query", "ascending"), ("score", "descending"), ("passage_id", "descending")]
        order = np.arange(len(scores))
        order[tied] = tied[pc.sort_indices(table, sort_keys=keys).to_numpy()]
        passage_ids = passage_ids.take(pa.array(order))
    # Filled places of a query come first, so the place is the rank.
    ranks = pa.array(place + 1, type=pa.int32())
    return pa.Table.from_arrays([query_ids.take(pa.array(query)), passage_ids, ranks, pa.array(scores)], schema=RUNS)
