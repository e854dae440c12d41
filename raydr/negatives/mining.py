"""From ranked passages and known positives to hard negatives.

A candidate is dropped if it is a known positive of the query, or has the content of one: equal title and text, apart
from case and white space. As a negative it would train the query away from its own answer. A candidate of a partition
outside the query's scope is dropped too. A window of ranks is kept of the rest.
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
        passage_ids: the candidates, best first.
        content_hashes: uint64, shape (candidates,); equal for passages with the same content.
        positive_ids: the query's known positives.
        positive_hashes: uint64, the content of those.
        elsewhere: bool, shape (candidates,): True for passages of a partition outside the query's scope.
        first_rank: first of the remaining candidates that is taken, from 1.
        depth: how many are taken, at most.

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
    """Counts over many queries."""

    #: Queries of the split.
    queries: int = 0
    #: Queries that no candidate was left for (or that had none to begin with).
    queries_without_negatives: int = 0
    #: Queries with some negatives, but fewer than asked for.
    queries_short: int = 0
    negatives: int = 0
    dropped_positive: int = 0
    dropped_identical: int = 0
    #: Candidates of a partition that negatives are not taken from.
    dropped_elsewhere: int = 0

    def count(self, kept: Kept, depth: int) -> None:
        """Add a query."""
        num = len(kept.positions)
        self.queries += 1
        self.queries_without_negatives += num == 0
        self.queries_short += 0 < num < depth
        self.negatives += num
        self.dropped_positive += kept.dropped_positive
        self.dropped_identical += kept.dropped_identical
        self.dropped_elsewhere += kept.dropped_elsewhere
