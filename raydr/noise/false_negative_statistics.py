"""Where a judge finds false negatives: in how many queries, how many in each, at which ranks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from raydr.errors import DataError
from raydr.noise.judges.base import BoolArray, CountArray, IntArray


@dataclass(frozen=True)
class FalseNegativeStatistics:
    """Counts over the candidates of some queries; they can be added up.

    Source: the analysis of Park et al. (HCLT 2023), figures 4 to 6.

    Args:
        num_candidates: candidates judged.
        queries_by_number: queries with 0, 1, 2, ... flagged candidates.
        flagged_by_rank: flagged candidates at rank 0, 1, 2, ... (rank 0 is always empty).
        candidates_by_rank: all candidates by rank.
    """

    num_candidates: int
    queries_by_number: CountArray
    flagged_by_rank: CountArray
    candidates_by_rank: CountArray

    @classmethod
    def count(cls, query_M: IntArray, rank_M: IntArray, flagged_M: BoolArray) -> FalseNegativeStatistics:
        """Count the candidates of whole queries.

        Args:
            query_M: a number from 0 for each candidate's query.
            rank_M: of each candidate under its miner, from 1.
            flagged_M: whether it is taken for a false negative.

        >>> found = FalseNegativeStatistics.count(
        ...     np.array([0, 0, 0, 1, 1]), np.array([1, 2, 30, 1, 2]), np.array([True, False, True, False, False])
        ... )
        >>> found.num_queries, found.share_of_queries, found.mean_number, found.max_number
        (2, 0.5, 2.0, 2)
        >>> found.share_within(10), found.share_flagged
        (0.5, 0.4)
        """
        if not len(query_M) == len(rank_M) == len(flagged_M):
            raise DataError(f"{len(query_M)} queries, {len(rank_M)} ranks and {len(flagged_M)} flags differ in number")
        present_Q = np.unique(query_M)
        numbers_Q = np.bincount(query_M[flagged_M], minlength=int(query_M.max(initial=-1)) + 1)[present_Q]
        return cls(
            len(query_M),
            np.bincount(numbers_Q.astype(np.int64), minlength=1),
            np.bincount(rank_M[flagged_M], minlength=1),
            np.bincount(rank_M, minlength=1),
        )

    @classmethod
    def none(cls) -> FalseNegativeStatistics:
        """Of no candidates."""
        return cls(0, *(np.zeros(1, dtype=np.int64) for _ in range(3)))

    def __add__(self, other: FalseNegativeStatistics) -> FalseNegativeStatistics:
        return FalseNegativeStatistics(
            self.num_candidates + other.num_candidates,
            _add(self.queries_by_number, other.queries_by_number),
            _add(self.flagged_by_rank, other.flagged_by_rank),
            _add(self.candidates_by_rank, other.candidates_by_rank),
        )

    @property
    def num_queries(self) -> int:
        return int(self.queries_by_number.sum())

    @property
    def num_flagged(self) -> int:
        return int(self.flagged_by_rank.sum())

    @property
    def share_flagged(self) -> float | None:
        """Of all candidates; None if there are none."""
        return self.num_flagged / self.num_candidates if self.num_candidates else None

    @property
    def share_of_queries(self) -> float | None:
        """Queries with at least one flagged candidate over all; None if there are none."""
        return int(self.queries_by_number[1:].sum()) / self.num_queries if self.num_queries else None

    @property
    def mean_number(self) -> float | None:
        """Flagged candidates of a query that has some; None if none has."""
        affected = int(self.queries_by_number[1:].sum())
        return self.num_flagged / affected if affected else None

    @property
    def max_number(self) -> int:
        return int(np.flatnonzero(self.queries_by_number).max(initial=0))

    def share_within(self, rank: int) -> float | None:
        """Share of the flagged candidates that sit at this rank or before it; None if nothing is flagged."""
        return int(self.flagged_by_rank[: rank + 1].sum()) / self.num_flagged if self.num_flagged else None


def _add(first: IntArray, second: IntArray) -> IntArray:
    return np.array([one + other for one, other in zip_longest(first, second, fillvalue=0)], dtype=np.int64)
