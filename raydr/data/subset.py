"""A part of a split's queries that does not depend on their order."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from raydr.seeding import stable_hash64


def choose_queries(query_ids: Iterable[str], max_queries: int, seed: int, purpose: str = "subset") -> set[str]:
    """The ``max_queries`` ids with the smallest stable hash of (seed, purpose, query_id); all if there are no more.

    The same ids are chosen in any order of the input, and a smaller subset is part of a larger one. Choices for
    different purposes are independent: queries made noisy are no likelier to be in a subset.

    >>> ids = [f"q{at}" for at in range(100)]
    >>> choose_queries(ids, 5, seed=1) == choose_queries(reversed(ids), 5, seed=1)
    True
    >>> choose_queries(ids, 5, seed=1) < choose_queries(ids, 9, seed=1)
    True
    """

    def order(query_id: str) -> tuple[int, str]:
        return stable_hash64(seed, purpose, query_id), query_id

    return set(heapq.nsmallest(max_queries, query_ids, key=order))
