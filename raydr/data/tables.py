"""Tables of a data set: rows by the ids of their queries and passages, and queries chosen at random."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable

import pyarrow as pa
import pyarrow.compute as pc

from raydr.seeding import stable_hash64


def of_queries(table: pa.Table, query_ids: Iterable[str] | pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return the rows of some queries."""
    known = query_ids if isinstance(query_ids, pa.Array | pa.ChunkedArray) else pa.array(query_ids, pa.string())
    return table.filter(pc.is_in(table["query_id"], value_set=known))


def relevant(qrels: pa.Table) -> pa.Table:
    """Return the judgments of positives; relevance 0 is a known non-relevant passage."""
    return qrels.filter(pc.greater(qrels["relevance"], 0))


def pairs_of(table: pa.Table, passage: str = "passage_id") -> list[tuple[str, str]]:
    """Return (query id, passage id) of each row."""
    return list(zip(table["query_id"].to_pylist(), table[passage].to_pylist(), strict=True))


def places_of(table: pa.Table, pairs: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Return the row of each known (query id, passage id) pair; ids of all other rows never become Python's.

    >>> places_of(pa.table({"query_id": ["q", "q", "r"], "passage_id": ["a", "b", "a"]}), {("q", "b"), ("s", "a")})
    {('q', 'b'): 1}
    """
    query_ids = pa.array([query_id for query_id, _ in pairs], pa.string())
    rows = pc.indices_nonzero(pc.is_in(table["query_id"], value_set=query_ids))
    located = zip(pairs_of(table.take(rows)), rows.to_pylist(), strict=True)
    return {pair: row for pair, row in located if pair in pairs}


def passages_by_query(table: pa.Table) -> dict[str, list[str]]:
    """Return the passage ids of each query that has some, in the order of the rows.

    >>> passages_by_query(pa.table({"query_id": ["q", "r", "q"], "passage_id": ["b", "a", "a"]}))
    {'q': ['b', 'a'], 'r': ['a']}
    """
    passages: dict[str, list[str]] = defaultdict(list)
    for query_id, passage_id in pairs_of(table):
        passages[query_id].append(passage_id)
    return dict(passages)


def relevance_by_query(qrels: pa.Table) -> dict[str, dict[str, int]]:
    """Return the relevance of each query's judged passages, by id."""
    judgments: dict[str, dict[str, int]] = defaultdict(dict)
    for (query_id, passage_id), relevance in zip(pairs_of(qrels), qrels["relevance"].to_pylist(), strict=True):
        judgments[query_id][passage_id] = relevance
    return dict(judgments)


def choose_queries(query_ids: Iterable[str], max_queries: int, seed: int, purpose: str = "subset") -> set[str]:
    """Return the ``max_queries`` ids with the smallest stable hash of (seed, purpose, query_id); all if there are no
    more.

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
