"""Injection of noise into training data, to measure methods against the truth.

Four kinds, which depend on the seed, the query ids and the set of training queries, never on the order of rows:

- *mismatched*: all positives of some queries are replaced by positives of other queries;
- *near*: they are replaced by positives of other queries that rank high for the query, which are harder to detect;
- *judged*: passages that people judged wrong become positives, which is the noise of real data;
- *false negatives*: all positives but one of some queries are planted among the negatives.

Where queries have partitions, the other queries are those of the query's partition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raydr.data.tables import NEGATIVES, choose_queries, pairs_of, passages_by_query, relevant, to_table
from raydr.errors import DataError
from raydr.seeding import query_rng

#: Value of the column ``noise`` of a judgment whose passage was replaced.
MISMATCHED = "mismatched"
#: Value of the column ``noise`` of a planted positive among the negatives.
FALSE_NEGATIVE = "false_negative"
#: Miner of planted positives.
PLANTED = "planted"

_PURPOSE = "inject noise"


@dataclass(frozen=True)
class CleanSplit:
    """Training split before noise is injected.

    Args:
        qrels: judgments of the split.
        negatives: negatives of the split.
        content: content hash of each judged passage, by id.
        dropped: pairs that are never positives or negatives, for example a query and the passage with its id.
        partitions: partition of each query that has one.

    Raises:
        DataError: the tables have injected noise already.
    """

    qrels: pa.Table
    negatives: pa.Table
    content: Mapping[str, int]
    dropped: pa.Table = field(default_factory=NEGATIVES.empty_table)
    partitions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, table in (("qrels", self.qrels), ("negatives", self.negatives)):
            noisy = len(table) - table["noise"].null_count
            if noisy:
                raise DataError(
                    f"{noisy} of {len(table)} rows of the table {name} have noise that was injected before: "
                    "start from the data set as it was prepared"
                )

    @cached_property
    def positives(self) -> dict[str, list[str]]:
        """Relevant passages of each query."""
        return passages_by_query(relevant(self.qrels))

    @cached_property
    def excluded(self) -> defaultdict[str, set[str]]:
        """Passages that never replace a query's positives: judged or dropped for it, or among its negatives."""
        excluded: defaultdict[str, set[str]] = defaultdict(set)
        for table in (self.qrels, self.negatives, self.dropped):
            for query_id, passage_id in pairs_of(table):
                excluded[query_id].add(passage_id)
        return excluded

    @cached_property
    def pools(self) -> dict[str, list[str]]:
        """Sorted positives of each partition's queries; the key "" has the positives of all queries."""
        pools: defaultdict[str, set[str]] = defaultdict(set)
        for query_id, passage_ids in self.positives.items():
            for partition in {"", self.partition(query_id)}:
                pools[partition].update(passage_ids)
        return {partition: sorted(passage_ids) for partition, passage_ids in pools.items()}

    def partition(self, query_id: str) -> str:
        """Return the query's partition; empty if it has none."""
        return self.partitions.get(query_id, "")


@dataclass(frozen=True)
class Injected:
    """Noisy tables of the training split, and counts."""

    qrels: pa.Table
    negatives: pa.Table
    #: Eligible queries, and queries that became noisy.
    num_eligible_queries: int
    num_noisy_queries: int
    #: Judgments replaced, or moved to the negatives.
    num_noisy_rows: int


def inject_mismatched(split: CleanSplit, share: float, seed: int) -> Injected:
    """Replace every positive of round(share · queries) queries by an unrelated passage.

    The replacement is a positive of another query, drawn evenly. It is not judged or dropped for the query, not among
    its negatives, and not a copy of one of its positives. The negatives are returned as they are.

    Args:
        split: training split.
        share: share of the queries with a positive.
        seed: seed of the choice of queries and passages.

    Raises:
        DataError: a query has no unrelated passage.
    """
    chosen = choose_queries(split.positives, round(share * len(split.positives)), seed, _PURPOSE)
    drawn = {query_id: _draw_unrelated(split, query_id, seed) for query_id in chosen}
    return _replaced(split, drawn, len(split.positives))


def inject_near(
    split: CleanSplit, share: float, seed: int, ranked: Mapping[str, Sequence[str]], ranks: tuple[int, int]
) -> Injected:
    """Replace every positive of round(share · eligible) queries by a passage that ranks high for the query.

    Judged and dropped passages, negatives of the query and copies of its positives have no rank. Eligible are queries
    with at least as many passages at these ranks as positives. Near passages may be right: nobody has judged them.

    Args:
        split: training split.
        share: share of the eligible queries.
        seed: seed of the choice of queries and passages.
        ranked: passages of each query, nearest first; each is a positive of a query.
        ranks: first and last rank to draw from.

    Raises:
        DataError: no query is eligible.
    """
    content = split.content
    near: dict[str, list[str]] = {}
    for query_id, own in split.positives.items():
        contents, left = {content[passage_id] for passage_id in own}, []
        for passage_id in ranked.get(query_id, ()):
            if passage_id not in split.excluded[query_id] and content[passage_id] not in contents:
                contents.add(content[passage_id])
                left.append(passage_id)
        if len(left[ranks[0] - 1 : ranks[1]]) >= len(own):
            near[query_id] = left[ranks[0] - 1 : ranks[1]]
    if share > 0 and not near:
        raise DataError(
            f"none of the {len(split.positives)} training queries has passages at the ranks {ranks[0]} to "
            f"{ranks[1]}: set inject_noise.ranks lower, or inject_noise.kind mismatched"
        )
    drawn = {}
    for query_id in choose_queries(near, round(share * len(near)), seed, _PURPOSE):
        places = query_rng(seed, 0, query_id, "inject near").permutation(len(near[query_id]))
        drawn[query_id] = [near[query_id][at] for at in places[: len(split.positives[query_id])]]
    return _replaced(split, drawn, len(near))


def inject_judged(split: CleanSplit, share: float, seed: int) -> Injected:
    """Turn passages that are judged wrong into positives, for round(share · eligible) queries.

    Eligible are queries with a passage of relevance 0 that is neither dropped nor a copy of a positive. These passages
    are removed from the negatives.

    Args:
        split: training split.
        share: share of the eligible queries.
        seed: seed of the choice of queries.

    Raises:
        DataError: no query is eligible.
    """
    content, dropped = split.content, set(pairs_of(split.dropped))
    right = {(query_id, content[passage_id]) for query_id, passage_id in pairs_of(relevant(split.qrels))}
    eligible: defaultdict[str, list[str]] = defaultdict(list)
    for query_id, passage_id in pairs_of(split.qrels.filter(pc.less_equal(split.qrels["relevance"], 0))):
        if (query_id, passage_id) not in dropped and (query_id, content[passage_id]) not in right:
            eligible[query_id].append(passage_id)
    if share > 0 and not eligible:
        raise DataError(
            "no training query has a passage that is judged wrong (relevance 0): use inject_noise.kind mismatched"
        )
    chosen = choose_queries(eligible, round(share * len(eligible)), seed, _PURPOSE)
    wrong = {(query_id, passage_id) for query_id in chosen for passage_id in eligible[query_id]}
    rows: list[dict[str, Any]] = split.qrels.to_pylist()
    for row in rows:
        if (row["query_id"], row["passage_id"]) in wrong:
            row.update(relevance=1, noise=MISMATCHED)
    return Injected(to_table("qrels", rows), _without(split.negatives, wrong), len(eligible), len(chosen), len(wrong))


def inject_false_negatives(split: CleanSplit, share: float, seed: int) -> Injected:
    """Move all positives but one of round(share · eligible) queries to the negatives.

    Eligible are queries with positives of different content. Copies of the positive that stays are not moved, since a
    copy of a known positive is never used as a negative. The planted negatives are added at the end, by query and
    passage id.

    Args:
        split: training split.
        share: share of the eligible queries.
        seed: seed of the choice of queries and of the positive that stays.

    Raises:
        DataError: no query is eligible.
    """
    positives, content = split.positives, split.content
    eligible = [query_id for query_id, ids in positives.items() if len({content[passage_id] for passage_id in ids}) > 1]
    if share > 0 and not eligible:
        raise DataError(
            f"none of the {len(positives)} training queries has several positives, so no false negative can be "
            "planted: use inject_noise.kind mismatched, or a data set with several positives a query"
        )
    moved: dict[str, list[str]] = {}
    chosen = choose_queries(eligible, round(share * len(eligible)), seed, _PURPOSE)
    for query_id in sorted(chosen):
        ids = sorted(positives[query_id])
        kept = ids[int(query_rng(seed, 0, query_id, "inject false negatives").integers(len(ids)))]
        moved[query_id] = [passage_id for passage_id in ids if content[passage_id] != content[kept]]
    gone = {(query_id, passage_id) for query_id, ids in moved.items() for passage_id in ids}
    planted = [
        {"query_id": query_id, "passage_id": passage_id, "miner": PLANTED, "rank": rank, "noise": FALSE_NEGATIVE}
        for query_id, ids in moved.items()
        for rank, passage_id in enumerate(ids, start=1)
    ]
    negatives = pa.concat_tables([_without(split.negatives, gone), to_table("negatives", planted)])
    return Injected(_without(split.qrels, gone), negatives, len(eligible), len(chosen), len(gone))


def _replaced(split: CleanSplit, drawn: Mapping[str, list[str]], num_eligible: int) -> Injected:
    """Replace the positives of each query by its drawn passages."""
    replacement = {
        (query_id, old): new
        for query_id, passage_ids in drawn.items()
        for old, new in zip(sorted(split.positives[query_id]), passage_ids, strict=True)
    }
    rows: list[dict[str, Any]] = split.qrels.to_pylist()
    for row in rows:
        new = replacement.get((row["query_id"], row["passage_id"]))
        if new is not None:
            row.update(passage_id=new, noise=MISMATCHED, original_passage_id=row["passage_id"])
    return Injected(to_table("qrels", rows), split.negatives, num_eligible, len(drawn), len(replacement))


def _draw_unrelated(split: CleanSplit, query_id: str, seed: int) -> list[str]:
    """Draw a passage for each positive: the first that fit, from a random place in the pool on, round the pool."""
    partition, positives, content = split.partition(query_id), split.positives[query_id], split.content
    pool, excluded = split.pools[partition], split.excluded[query_id]
    start = int(query_rng(seed, 0, query_id, "inject mismatched").integers(len(pool)))
    contents = {content[passage_id] for passage_id in positives}
    drawn: list[str] = []
    for step in range(len(pool)):
        candidate = pool[(start + step) % len(pool)]
        if candidate not in excluded and content[candidate] not in contents:
            drawn.append(candidate)
            contents.add(content[candidate])
            if len(drawn) == len(positives):
                return drawn
    raise DataError(
        f"there are not {len(positives)} passages unrelated to query {query_id!r} among the {len(pool)} positives of "
        + (f"partition {partition!r} of " if partition else "")
        + "the training split: use a data set with more queries"
    )


def _without(table: pa.Table, gone: set[tuple[str, str]]) -> pa.Table:
    return table.filter(pa.array([pair not in gone for pair in pairs_of(table)], type=pa.bool_()))
