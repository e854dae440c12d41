"""Noise put into training data on purpose, to measure methods against the truth.

Three kinds, functions of (seed, query id) and of the set of training queries, never of the order of rows:

- *mismatched*: all positives of some queries are replaced by positives of other queries;
- *near*: by positives of other queries that rank high for the query, which are harder to find;
- *false negatives*: of some queries with several positives all but one are planted among the negatives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from raydr.data.schema import to_table
from raydr.data.tables import choose_queries, pairs_of, passages_by_query, relevant
from raydr.errors import DataError
from raydr.seeding import query_rng

#: Value of the column ``noise`` of a judgment whose passage was replaced.
MISMATCHED = "mismatched"
#: Value of the column ``noise`` of a negative that is a positive in truth.
FALSE_NEGATIVE = "false_negative"
#: Miner of the negatives that were positives.
PLANTED = "planted"

_PURPOSE = "inject noise"


@dataclass(frozen=True)
class Injected:
    """The noisy tables of the training split, and counts."""

    qrels: pa.Table
    negatives: pa.Table
    #: Queries that could have been made noisy, and those that were.
    num_eligible_queries: int
    num_noisy_queries: int
    #: Judgments replaced, or moved to the negatives.
    num_noisy_rows: int


def inject_mismatched(
    qrels: pa.Table, negatives: pa.Table, content: Mapping[str, int], share: float, seed: int
) -> Injected:
    """Replace every positive of round(share · queries) queries by an unrelated passage.

    The replacement is a positive of another query, drawn evenly. It is not judged for the query, not among its
    negatives, and not a copy of one of its positives.

    Args:
        qrels: judgments of the training split.
        negatives: negatives of the training split; returned as they are.
        content: hash of the content of each passage that the judgments name.
        share: share of the queries with a positive.
        seed: decides which queries, and with each query's id which passages.

    Raises:
        DataError: the judgments have injected noise already, or a query has no unrelated passage.
    """
    _check_clean(qrels, negatives)
    positives = passages_by_query(relevant(qrels))
    chosen = choose_queries(positives, round(share * len(positives)), seed, _PURPOSE)
    excluded = _excluded(qrels, negatives)
    pool = sorted({passage_id for passage_ids in positives.values() for passage_id in passage_ids})
    drawn = {
        query_id: _draw_unrelated(query_id, positives[query_id], pool, content, excluded[query_id], seed)
        for query_id in chosen
    }
    return _replaced(qrels, negatives, positives, drawn, len(positives))


def inject_near(
    qrels: pa.Table,
    negatives: pa.Table,
    content: Mapping[str, int],
    share: float,
    seed: int,
    ranked: Mapping[str, Sequence[str]],
    ranks: tuple[int, int],
) -> Injected:
    """Replace every positive of round(share · eligible) queries by a passage that ranks high for the query.

    Ranks count without the query's positives, their copies, and what is judged for it or among its negatives. Eligible
    are queries with as many passages at these ranks as they have positives. Near passages may be right: nobody has
    judged them.

    Args:
        qrels, negatives, content, seed: as in :func:`inject_mismatched`.
        share: share of the eligible queries.
        ranked: passages of each query, the nearest first; each a positive of some query.
        ranks: first and last rank that is drawn from.

    Raises:
        DataError: the judgments have injected noise already, or no query is eligible.
    """
    _check_clean(qrels, negatives)
    positives, excluded = passages_by_query(relevant(qrels)), _excluded(qrels, negatives)
    near: dict[str, list[str]] = {}
    for query_id, own in positives.items():
        contents, left = {content[passage_id] for passage_id in own}, []
        for passage_id in ranked.get(query_id, ()):
            if passage_id not in excluded[query_id] and content[passage_id] not in contents:
                contents.add(content[passage_id])
                left.append(passage_id)
        if len(left[ranks[0] - 1 : ranks[1]]) >= len(own):
            near[query_id] = left[ranks[0] - 1 : ranks[1]]
    if share > 0 and not near:
        raise DataError(
            f"none of the {len(positives)} training queries has passages at the ranks {ranks[0]} to {ranks[1]}: set "
            "inject_noise.ranks lower, or inject_noise.kind mismatched"
        )
    drawn = {}
    for query_id in choose_queries(near, round(share * len(near)), seed, _PURPOSE):
        places = query_rng(seed, 0, query_id, "inject near").permutation(len(near[query_id]))
        drawn[query_id] = [near[query_id][at] for at in places[: len(positives[query_id])]]
    return _replaced(qrels, negatives, positives, drawn, len(near))


def inject_false_negatives(
    qrels: pa.Table, negatives: pa.Table, content: Mapping[str, int], share: float, seed: int
) -> Injected:
    """Move all positives but one of round(share · eligible) queries to the negatives.

    Eligible are queries with positives of different content. Copies of the positive that stays are not moved, since a
    copy of a known positive is never used as a negative.

    Args:
        qrels: judgments of the training split.
        negatives: negatives of the training split; the planted ones are added at the end, by query and passage id.
        content: hash of the content of each passage that the judgments name.
        share: share of the eligible queries.
        seed: decides which queries, and with each query's id which positive stays.

    Raises:
        DataError: the judgments have injected noise already, or no query is eligible.
    """
    _check_clean(qrels, negatives)
    positives = passages_by_query(relevant(qrels))
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
    together = pa.concat_tables([_without(negatives, gone), to_table("negatives", planted)])
    return Injected(_without(qrels, gone), together, len(eligible), len(chosen), len(gone))


def _excluded(qrels: pa.Table, negatives: pa.Table) -> defaultdict[str, set[str]]:
    """Return what no query may be given: the passages that are judged for it, or among its negatives."""
    excluded: defaultdict[str, set[str]] = defaultdict(set)
    for query_id, passage_id in [*pairs_of(qrels), *pairs_of(negatives)]:
        excluded[query_id].add(passage_id)
    return excluded


def _replaced(
    qrels: pa.Table,
    negatives: pa.Table,
    positives: Mapping[str, list[str]],
    drawn: Mapping[str, list[str]],
    num_eligible: int,
) -> Injected:
    """Put the drawn passages of each query into the place of its positives."""
    replacement = {
        (query_id, old): new
        for query_id, passage_ids in drawn.items()
        for old, new in zip(sorted(positives[query_id]), passage_ids, strict=True)
    }
    rows: list[dict[str, Any]] = qrels.to_pylist()
    for row in rows:
        new = replacement.get((row["query_id"], row["passage_id"]))
        if new is not None:
            row.update(passage_id=new, noise=MISMATCHED, original_passage_id=row["passage_id"])
    return Injected(to_table("qrels", rows), negatives, num_eligible, len(drawn), len(replacement))


def _draw_unrelated(
    query_id: str, positives: list[str], pool: list[str], content: Mapping[str, int], excluded: set[str], seed: int
) -> list[str]:
    """Draw a passage of the pool for each positive: the first that fit, from a drawn place on, round the pool."""
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
        "the training split: use a data set with more queries"
    )


def _check_clean(qrels: pa.Table, negatives: pa.Table) -> None:
    for name, table in (("qrels", qrels), ("negatives", negatives)):
        noisy = len(table) - table["noise"].null_count
        if noisy:
            raise DataError(
                f"{noisy} of {len(table)} rows of the table {name} have noise that was injected before: "
                "start from the data set as it was prepared"
            )


def _without(table: pa.Table, gone: set[tuple[str, str]]) -> pa.Table:
    return table.filter(pa.array([pair not in gone for pair in pairs_of(table)], type=pa.bool_()))
