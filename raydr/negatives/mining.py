"""From ranked passages and known positives to hard negatives.

Known positives of the query are dropped, and so are passages with the same content: equal title and text, apart from
case and white space. As negatives they would contradict the positive. Candidates of partitions outside the query's
scope are dropped too. Of the others, a range of ranks is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Kept:
    """Positions of the candidates kept for a query, and counts of the dropped candidates by reason."""

    positions: NDArray[np.int64]
    dropped_positive: int
    dropped_identical: int
    dropped_elsewhere: int


def keep_negatives(
    passage_ids: Sequence[str],
    content_hashes: NDArray[np.uint64],
    positive_ids: Collection[str],
    positive_hashes: NDArray[np.uint64],
    elsewhere: NDArray[np.bool_],
    first_rank: int,
    depth: int,
) -> Kept:
    """Choose the hard negatives of a query.

    Args:
        passage_ids: ids of the candidates, best first.
        content_hashes: uint64, shape (candidates,); equal for passages with the same content.
        positive_ids: ids of the query's known positives.
        positive_hashes: uint64, content hashes of the known positives.
        elsewhere: bool, shape (candidates,): True for passages of a partition outside the query's scope.
        first_rank: rank of the first negative among the remaining candidates, from 1.
        depth: maximum of negatives.

    >>> hashes = np.array([1, 2, 3, 2, 4], dtype=np.uint64)
    >>> here = np.zeros(5, dtype=bool)
    >>> kept = keep_negatives(["a", "b", "c", "d", "e"], hashes, {"b"}, hashes[1:2], here, first_rank=2, depth=2)
    >>> kept.positions.tolist(), kept.dropped_positive, kept.dropped_identical
    ([2, 4], 1, 1)
    """
    positive = np.fromiter(
        (passage_id in positive_ids for passage_id in passage_ids), dtype=bool, count=len(passage_ids)
    )
    identical = np.isin(content_hashes, positive_hashes) & ~positive
    elsewhere = elsewhere & ~positive & ~identical
    left = np.flatnonzero(~positive & ~identical & ~elsewhere)
    dropped = (int(is_dropped.sum()) for is_dropped in (positive, identical, elsewhere))
    return Kept(left[first_rank - 1 : first_rank - 1 + depth], *dropped)


@dataclass
class MiningCounts:
    """Counts over the queries of a split."""

    #: Queries of the split.
    queries: int = 0
    #: Queries without a negative.
    queries_without_negatives: int = 0
    #: Queries with negatives, but fewer than configured.
    queries_short: int = 0
    negatives: int = 0
    dropped_positive: int = 0
    dropped_identical: int = 0
    #: Candidates of partitions outside the query's scope.
    dropped_elsewhere: int = 0

    def count(self, kept: Kept, depth: int) -> None:
        """Count a query."""
        num = len(kept.positions)
        self.queries += 1
        self.queries_without_negatives += num == 0
        self.queries_short += 0 < num < depth
        self.negatives += num
        self.dropped_positive += kept.dropped_positive
        self.dropped_identical += kept.dropped_identical
        self.dropped_elsewhere += kept.dropped_elsewhere
