"""What a judge is given to judge."""

from __future__ import annotations

import pyarrow as pa

from raydr.noise.candidates import candidates_of


def test_a_judge_sees_what_earlier_ones_have_left_each_passage_once() -> None:
    rows = [
        ("q1", "p1", "keep"),
        ("q1", "p2", "drop"),
        ("q1", "p3", "relabel"),
        ("q1", "p1", "keep"),
        ("q2", "p1", "drop"),
        ("q3", "p4", "down_weight"),
        ("q3", "p1", "keep"),
    ]
    table = pa.table(dict(zip(("query_id", "passage_id", "action"), map(list, zip(*rows, strict=True)), strict=True)))
    candidates = candidates_of(table, 0, len(rows))
    left = candidates.undecided()
    assert left.query_ids == ["q1", "q3"]
    assert left.offsets.tolist() == [0, 1, 3]
    assert left.table["passage_id"].to_pylist() == ["p1", "p4", "p1"]
    assert left.query_M.tolist() == [0, 1, 1]
    assert candidates.relabelled() == {"q1": ["p3"]}


def test_of_some_pairs_those_are_seen_that_are_named() -> None:
    table = pa.table({"query_id": ["q1", "q1", "q2", "q3"], "passage_id": ["p1", "p2", "p1", "p1"]})
    candidates = candidates_of(table, 0, 4).among({("q1", "p2"), ("q3", "p1"), ("q2", "p9")})
    assert (candidates.query_ids, candidates.offsets.tolist()) == (["q1", "q3"], [0, 1, 2])
    assert candidates.table["passage_id"].to_pylist() == ["p2", "p1"]


def test_nothing_is_left_where_all_was_decided() -> None:
    table = pa.table({"query_id": ["q1"], "passage_id": ["p1"], "action": ["drop"]})
    left = candidates_of(table, 0, 1).undecided()
    assert (left.query_ids, left.offsets.tolist(), len(left.table)) == ([], [0], 0)
