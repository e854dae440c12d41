"""Candidate negatives for judges: grouped by query, without those that earlier judges decided."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.data.parts import offsets_of
from raydr.data.tables import pairs_of, passages_by_query
from raydr.errors import DataError
from raydr.noise.judges.base import FloatArray, IntArray


@dataclass(frozen=True)
class Candidates:
    """Candidates of Q queries, grouped by query.

    Args:
        table: rows of the table ``negatives``.
        query_ids: ids of the Q queries, in row order.
        offsets: rows of query i are ``offsets[i]:offsets[i + 1]``.
    """

    table: pa.Table
    query_ids: list[str]
    offsets: IntArray

    @property
    def query_M(self) -> IntArray:
        return np.repeat(np.arange(len(self.query_ids)), np.diff(self.offsets))

    def only(self, keep_Q: np.ndarray) -> Candidates:
        """Return the candidates of the selected queries."""
        return self._select(keep_Q[self.query_M], keep_Q)

    def undecided(self) -> Candidates:
        """Return the candidates that no earlier judge dropped or relabelled, without duplicates or empty queries."""
        used_M = pc.is_in(self.table["action"], pa.array(["keep", "down_weight"])).to_numpy()
        again_M = self.table.select(["query_id", "passage_id"]).to_pandas().duplicated().to_numpy()
        return self._rows(used_M & ~again_M)

    def among(self, pairs: Container[tuple[str, str]]) -> Candidates:
        """Return the candidates whose (query, passage) is in ``pairs``, without empty queries."""
        return self._rows(np.array([pair in pairs for pair in pairs_of(self.table)], dtype=np.bool_))

    def relabelled(self) -> dict[str, list[str]]:
        """Return the passages that earlier judges relabelled as positives, by query."""
        return passages_by_query(self.table.filter(pc.equal(self.table["action"], "relabel")))

    def _rows(self, keep_M: np.ndarray) -> Candidates:
        return self._select(keep_M, np.bincount(self.query_M[keep_M], minlength=len(self.query_ids)) > 0)

    def _select(self, keep_M: np.ndarray, keep_Q: np.ndarray) -> Candidates:
        sizes = np.bincount(self.query_M[keep_M], minlength=len(self.query_ids))[keep_Q]
        return Candidates(
            self.table.filter(pa.array(keep_M)),
            [query_id for query_id, kept in zip(self.query_ids, keep_Q, strict=True) if kept],
            offsets_of(sizes),
        )


def candidates_of(table: pa.Table, start: int, end: int) -> Candidates:
    """Return all candidates of the queries whose first row is in ``start`` to ``end``.

    Each query of a part thus belongs to exactly one row range.
    """
    codes = table["query_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    # dictionary_encode numbers codes by first appearance.
    _, first = np.unique(codes, return_index=True)
    mine = np.flatnonzero((first >= start) & (first < end))
    rows = np.flatnonzero(np.isin(codes, mine))
    rows = rows[np.argsort(codes[rows], kind="stable")]
    sizes = np.bincount(codes, minlength=len(first))[mine]
    query_ids = table["query_id"].take(pa.array(first[mine])).to_pylist()
    return Candidates(table.take(pa.array(rows)), query_ids, offsets_of(sizes))


def mined_scores(candidates: Candidates, judge: str) -> tuple[FloatArray, FloatArray]:
    """Return the miner's scores of candidates and positives; -inf for positives that it did not retrieve.

    Raises:
        DataError: a candidate has no score.
    """
    if candidates.table["score"].null_count:
        at = int(np.flatnonzero(candidates.table["score"].is_null().to_numpy())[0])
        row = candidates.table.slice(at, 1).to_pylist()[0]
        raise DataError(
            f"judge {judge} reads the miner's scores, but {candidates.table['score'].null_count} of "
            f"{len(candidates.table)} candidates have none; the first is passage {row['passage_id']!r} of query "
            f"{row['query_id']!r} (miner {row['miner']}): set judge.scores to model"
        )
    best_Q = np.full(len(candidates.query_ids), -np.inf)
    positive_M = candidates.table["positive_score"].to_numpy(zero_copy_only=False).astype(np.float64)
    np.maximum.at(best_Q, candidates.query_M, np.nan_to_num(positive_M, nan=-np.inf))
    return candidates.table["score"].to_numpy().astype(np.float64), best_Q
