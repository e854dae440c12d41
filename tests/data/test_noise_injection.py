"""Injected noise: exact shares, truth in columns, nothing depends on the order of rows."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from raydr.data.noise_injection import (
    CleanSplit,
    Injected,
    inject_false_negatives,
    inject_judged,
    inject_mismatched,
    inject_near,
)
from raydr.data.tables import to_table
from raydr.errors import DataError


def make_qrels(num_queries: int, num_positives: int = 1) -> pa.Table:
    """Query qI has the positives pI.0, pI.1, ... and the judged non-relevant passage of the next query."""
    rows: list[dict[str, Any]] = []
    for at in range(num_queries):
        rows.extend({"query_id": f"q{at}", "passage_id": f"p{at}.{number}"} for number in range(num_positives))
        other = f"p{(at + 1) % num_queries}.0"
        rows.append({"query_id": f"q{at}", "passage_id": other, "relevance": 0})
    return to_table("qrels", rows)


def content_of(qrels: pa.Table) -> dict[str, int]:
    return {passage_id: at for at, passage_id in enumerate(dict.fromkeys(qrels["passage_id"].to_pylist()))}


def positives_of(qrels: pa.Table) -> dict[str, set[str]]:
    positives: dict[str, set[str]] = {}
    for row in qrels.to_pylist():
        if row["relevance"] > 0:
            positives.setdefault(row["query_id"], set()).add(row["passage_id"])
    return positives


def sorted_rows(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: (row["query_id"], row["passage_id"]))


def shuffled(table: pa.Table) -> pa.Table:
    order = sorted(range(len(table)), key=lambda at: at * 7919 % (len(table) + 1))
    return table.take(pa.array(order))


NONE = to_table("negatives", [])
#: For 8 queries: the first positives of the queries after it.
RANKED = {f"q{at}": [f"p{(at + step) % 8}.0" for step in range(8)] for at in range(8)}


def near_of_all(split: CleanSplit, share: float, seed: int) -> Injected:
    """Near is the query's own first positive, and those of the queries after it."""
    ids = sorted({row["query_id"] for row in split.qrels.to_pylist()}, key=lambda query_id: int(query_id[1:]))
    ranked = {query_id: [f"p{(at + step) % len(ids)}.0" for step in range(12)] for at, query_id in enumerate(ids)}
    return inject_near(split, share, seed, ranked, (3, 8))


@pytest.mark.parametrize(("share", "noisy"), [(0.0, 0), (0.1, 3), (0.5, 15), (1.0, 30)])
def test_mismatched_replaces_exactly_the_share(share: float, noisy: int) -> None:
    qrels = make_qrels(30)
    made = inject_mismatched(CleanSplit(qrels, NONE, content_of(qrels)), share, seed=1)
    changed = [row for row in made.qrels.to_pylist() if row["noise"] is not None]
    assert len(changed) == made.num_noisy_queries == made.num_noisy_rows == noisy
    assert made.num_eligible_queries == 30
    before = positives_of(qrels)
    for row in changed:
        assert row["noise"] == "mismatched"
        assert row["original_passage_id"] in before[row["query_id"]]
        assert row["passage_id"] not in before[row["query_id"]]
        assert row["relevance"] == 1
    # A passage judged non-relevant is not drawn either, so no pair is judged twice.
    assert len(set(zip(made.qrels["query_id"].to_pylist(), made.qrels["passage_id"].to_pylist(), strict=True))) == 60
    if not noisy:
        assert made.qrels.equals(qrels)


def test_mismatched_replaces_all_positives_of_a_query_by_different_ones() -> None:
    qrels = make_qrels(20, num_positives=3)
    made = inject_mismatched(CleanSplit(qrels, NONE, content_of(qrels)), 0.25, seed=1)
    after = positives_of(made.qrels)
    assert made.num_noisy_queries == 5
    assert made.num_noisy_rows == 15
    assert {len(passage_ids) for passage_ids in after.values()} == {3}


def test_copies_of_the_positive_are_never_drawn() -> None:
    qrels = make_qrels(6)
    content = content_of(qrels) | {f"p{at}.0": 7 for at in range(5)}
    made = inject_mismatched(
        CleanSplit(qrels.filter(pa.compute.greater(qrels["relevance"], 0)), NONE, content), 1.0, seed=0
    )
    drawn = {row["query_id"]: row["passage_id"] for row in made.qrels.to_pylist()}
    assert all(drawn[f"q{at}"] == "p5.0" for at in range(5))


def test_negatives_of_the_query_are_never_drawn() -> None:
    qrels = to_table("qrels", [{"query_id": f"q{at}", "passage_id": f"p{at}"} for at in range(3)])
    negatives = to_table("negatives", [{"query_id": "q0", "passage_id": "p1", "miner": "bm25", "rank": 1}])
    for seed in range(10):
        made = inject_mismatched(CleanSplit(qrels, negatives, content_of(qrels)), 1.0, seed)
        assert made.qrels["passage_id"].to_pylist()[0] == "p2"
        assert made.negatives.equals(negatives)


@pytest.mark.parametrize("inject", [inject_mismatched, near_of_all])
def test_a_dropped_pair_is_never_drawn(inject: Any) -> None:
    """So is the passage that has the query's id, where ``data.skip_own_id`` leaves it out."""
    qrels = make_qrels(8)
    others = [(f"q{at}", f"p{(at + step) % 8}.0") for at in range(8) for step in range(2, 6) if step != 4]
    dropped = to_table(
        "dropped", [{"query_id": query, "passage_id": passage, "miner": "own"} for query, passage in others]
    )
    split = CleanSplit(qrels, NONE, content_of(qrels), dropped)
    for seed in range(5):
        made = inject_near(split, 1.0, seed, RANKED, (1, 1)) if inject is near_of_all else inject(split, 1.0, seed)
        drawn = {(row["query_id"], row["passage_id"]) for row in made.qrels.to_pylist() if row["noise"]}
        assert len(drawn) == 8
        assert not drawn & set(others)


def test_unrelated_passages_are_of_the_partition_of_the_query() -> None:
    qrels = make_qrels(20)
    worlds = {f"q{at}": "ab"[at % 2] for at in range(16)}
    made = inject_mismatched(CleanSplit(qrels, NONE, content_of(qrels), partitions=worlds), 1.0, seed=0)
    drawn = {
        row["query_id"]: int(row["passage_id"][1:].split(".")[0]) for row in made.qrels.to_pylist() if row["noise"]
    }
    assert all(at < 16 and "ab"[at % 2] == worlds[query] for query, at in drawn.items() if query in worlds)
    lonely = CleanSplit(qrels, NONE, content_of(qrels), partitions=worlds | {"q16": "c"})
    with pytest.raises(DataError, match="among the 1 positives of partition 'c' of the training split"):
        inject_mismatched(lonely, 1.0, seed=0)


def test_a_query_without_unrelated_passages_is_an_error() -> None:
    qrels = to_table("qrels", [{"query_id": "q0", "passage_id": "p0"}])
    with pytest.raises(DataError, match="unrelated to query 'q0'"):
        inject_mismatched(CleanSplit(qrels, NONE, {"p0": 0}), 1.0, seed=0)


def test_near_passages_are_drawn_from_the_ranks_that_others_have() -> None:
    qrels = make_qrels(30)
    content = content_of(qrels) | {"p7.0": 5, "p5.0": 5}
    made = near_of_all(CleanSplit(qrels, NONE, content), 0.5, seed=1)
    changed = [row for row in made.qrels.to_pylist() if row["noise"] is not None]
    assert len(changed) == made.num_noisy_queries == made.num_noisy_rows == 15
    assert {row["noise"] for row in changed} == {"mismatched"}
    for row in changed:
        query = int(row["query_id"][1:])
        # Its own passage and the judged one after it have no rank; then nor has a copy of either.
        steps = [step for step in range(2, 12) if not (query == 5 and step == 2)]
        copies = {5: 7, 7: 5}
        steps = [s for s in steps if not ((other := copies.get((query + s) % 30)) and (other - query) % 30 < s)]
        assert row["passage_id"] in {f"p{(query + step) % 30}.0" for step in steps[2:8]}
    assert len({row["passage_id"] for row in changed}) > 5


def test_queries_without_near_passages_stay_as_they_are() -> None:
    qrels = make_qrels(10)
    ranked = {"q0": [f"p{at}.0" for at in range(10)], "q1": ["p5.0"]}
    near = partial(inject_near, CleanSplit(qrels, NONE, content_of(qrels)), 1.0, 0, ranked)
    made = near(ranks=(2, 4))
    assert (made.num_eligible_queries, made.num_noisy_queries) == (1, 1)
    assert [row["query_id"] for row in made.qrels.to_pylist() if row["noise"]] == ["q0"]
    with pytest.raises(DataError, match=r"none of the 10 training queries has passages at the ranks 20 to 30"):
        near(ranks=(20, 30))


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_false_negatives_move_all_positives_but_one(share: float) -> None:
    qrels = pa.concat_tables(
        [make_qrels(20, num_positives=3), to_table("qrels", [{"query_id": "x", "passage_id": "y"}])]
    )
    made = inject_false_negatives(CleanSplit(qrels, NONE, content_of(qrels)), share, seed=3)
    before, after = positives_of(qrels), positives_of(made.qrels)
    assert made.num_eligible_queries == 20
    assert made.num_noisy_queries == 20 * share
    assert made.num_noisy_rows == 2 * made.num_noisy_queries == len(made.negatives)
    planted = made.negatives.to_pylist()
    assert {(row["miner"], row["noise"], row["action"]) for row in planted} == {("planted", "false_negative", "keep")}
    for query_id in {row["query_id"] for row in planted}:
        mine = {row["passage_id"] for row in planted if row["query_id"] == query_id}
        assert len(after[query_id]) == 1
        assert after[query_id] | mine == before[query_id]
    assert after["x"] == {"y"}
    assert len({next(iter(after[row["query_id"]])).split(".")[1] for row in planted}) > 1


def test_copies_of_the_positive_that_stays_are_not_planted() -> None:
    qrels = to_table("qrels", [{"query_id": "q", "passage_id": passage_id} for passage_id in "abc"])
    made = inject_false_negatives(CleanSplit(qrels, NONE, {"a": 1, "b": 1, "c": 2}), 1.0, seed=0)
    left = set(made.qrels["passage_id"].to_pylist())
    assert left in ({"a", "b"}, {"c"})
    assert left | set(made.negatives["passage_id"].to_pylist()) == {"a", "b", "c"}


def test_without_several_positives_nothing_can_be_planted() -> None:
    qrels = make_qrels(5)
    with pytest.raises(DataError, match="none of the 5 training queries has several positives"):
        inject_false_negatives(CleanSplit(qrels, NONE, content_of(qrels)), 0.2, seed=0)


def test_passages_judged_wrong_become_positives_whose_truth_is_known() -> None:
    qrels = make_qrels(10)
    negatives = to_table(
        "negatives",
        [{"query_id": "q0", "passage_id": passage, "miner": "source", "rank": 1} for passage in ("p1.0", "p5.0")],
    )
    made = inject_judged(CleanSplit(qrels, negatives, content_of(qrels)), 1.0, seed=0)
    wrong = {(row["query_id"], row["passage_id"]) for row in qrels.to_pylist() if not row["relevance"]}
    assert {(row["query_id"], row["passage_id"]) for row in made.qrels.to_pylist() if row["noise"]} == wrong
    assert all(row["relevance"] == 1 for row in made.qrels.to_pylist())
    assert (made.num_eligible_queries, made.num_noisy_queries, made.num_noisy_rows) == (10, 10, 10)
    # What counts as a positive is no negative any more.
    assert made.negatives["passage_id"].to_pylist() == ["p5.0"]
    right = to_table("qrels", [{"query_id": "q", "passage_id": "p"}])
    with pytest.raises(DataError, match="no training query has a passage that is judged wrong"):
        inject_judged(CleanSplit(right, NONE, content_of(right)), 1.0, seed=0)


def test_copies_of_positives_and_dropped_pairs_do_not_become_noise() -> None:
    """People judge a text right under an id and wrong under another; a query's own passage is never a positive."""
    judgments = [("a", 1), ("copy of a", 0), ("b", 0), ("q", 0)]
    qrels = to_table("qrels", ({"query_id": "q", "passage_id": name, "relevance": r} for name, r in judgments))
    dropped = to_table("dropped", [{"query_id": "q", "passage_id": "q", "miner": "own id"}])
    content = {"a": 1, "copy of a": 1, "b": 2, "q": 3}
    made = inject_judged(CleanSplit(qrels, NONE, content, dropped), 1.0, seed=0)
    assert [row["passage_id"] for row in made.qrels.to_pylist() if row["noise"]] == ["b"]
    assert made.qrels["relevance"].to_pylist() == [1, 0, 1, 0]
    only_copy = qrels.slice(0, 2)
    with pytest.raises(DataError, match="no training query has a passage that is judged wrong"):
        inject_judged(CleanSplit(only_copy, NONE, content), 1.0, seed=0)


def test_noise_is_not_injected_twice() -> None:
    qrels = make_qrels(10)
    made = inject_mismatched(CleanSplit(qrels, NONE, content_of(qrels)), 0.5, seed=0)
    with pytest.raises(DataError, match="5 of 20 rows of the table qrels have noise"):
        CleanSplit(made.qrels, NONE, content_of(qrels))


@pytest.mark.invariant
@pytest.mark.parametrize("inject", [inject_mismatched, inject_judged, inject_false_negatives, near_of_all])
def test_the_order_of_rows_changes_nothing(inject: Any) -> None:
    qrels = make_qrels(40, num_positives=2)
    content = content_of(qrels)
    made: Injected = inject(CleanSplit(qrels, NONE, content), 0.4, seed=5)
    again: Injected = inject(CleanSplit(shuffled(qrels), NONE, content), 0.4, seed=5)
    other: Injected = inject(CleanSplit(qrels, NONE, content), 0.4, seed=6)
    assert sorted_rows(made.qrels) == sorted_rows(again.qrels)
    assert made.negatives.equals(again.negatives)
    assert sorted_rows(made.qrels) != sorted_rows(other.qrels)


@pytest.mark.invariant
@pytest.mark.parametrize("inject", [inject_mismatched, inject_judged, inject_false_negatives, near_of_all])
def test_more_noise_contains_less_noise(inject: Any) -> None:
    qrels = make_qrels(40, num_positives=2)
    less, more = (inject(CleanSplit(qrels, NONE, content_of(qrels)), share, seed=5) for share in (0.2, 0.4))
    clean = {tuple(row.items()) for row in qrels.to_pylist()}
    changed = [{tuple(row.items()) for row in made.qrels.to_pylist()} - clean for made in (less, more)]
    assert changed[0] <= changed[1]
    assert {tuple(row.items()) for row in less.negatives.to_pylist()} <= {
        tuple(row.items()) for row in more.negatives.to_pylist()
    }
