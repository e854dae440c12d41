"""Chains of verdicts, and what they come to."""

import pyarrow as pa
import pytest

from raydr.data.tables import VERDICTS, to_table
from raydr.noise.chain import STRENGTH, judge_negatives, split_pairs
from raydr.noise.judges.base import ACTIONS
from raydr.noise.judges.classifier import Classifier
from raydr.noise.judges.margin import Margin
from raydr.noise.judges.sieve import Sieve
from raydr.noise.verdict_report import summarize_verdicts

WEIGHT = {"keep": 1.0, "drop": 0.0, "relabel": 0.0, "down_weight": 0.25}


def verdicts(judge, rows):
    """Rows are (query, passage, action) with an optional score and truth."""
    columns = {name: [] for name in VERDICTS.names}
    for query_id, passage_id, action, *more in rows:
        score, truth = (*more, None, None)[:2]
        row = (query_id, passage_id, judge, score or 0.0, action, WEIGHT[action], truth)
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
    return pa.table(columns, schema=VERDICTS)


def negatives(actions):
    return to_table(
        "negatives",
        [
            {"query_id": "q", "passage_id": f"p{at}", "miner": "bm25", "rank": at, "score": 5.0 - at, "action": action}
            | ({"weight": WEIGHT[action]})
            for at, action in enumerate(actions)
        ],
    )


def test_every_action_has_its_strength():
    assert sorted(STRENGTH) == sorted(ACTIONS)


def test_the_strongest_action_of_a_chain_wins_in_any_order():
    first = verdicts("a", [("q", "p0", "keep"), ("q", "p1", "down_weight"), ("q", "p2", "drop"), ("q", "p3", "keep")])
    second = verdicts(
        "b", [("q", "p0", "down_weight"), ("q", "p1", "drop"), ("q", "p2", "relabel"), ("x", "p3", "drop")]
    )
    mined = negatives(["keep"] * 4)
    judged = judge_negatives(mined, [first, second])
    assert judged["action"].to_pylist() == ["down_weight", "drop", "relabel", "keep"]
    assert judged["weight"].to_pylist() == [0.25, 0.0, 0.0, 1.0]
    assert judge_negatives(mined, [second, first]).equals(judged)
    assert judged.schema.equals(mined.schema)
    assert judged.drop_columns(["action", "weight"]).equals(mined.drop_columns(["action", "weight"]))


def test_earlier_verdicts_in_the_negatives_stay():
    judged = judge_negatives(negatives(["drop", "down_weight"]), [verdicts("a", [("q", "p0", "keep")])])
    assert judged["action"].to_pylist() == ["drop", "down_weight"]
    assert judged["weight"].to_pylist() == [0.0, 0.25]


def test_dropped_pairs_leave_the_judgments_and_nothing_else_does():
    rows = [("q1", "p1", 1), ("q1", "p2", 0), ("q2", "p1", 1)]
    qrels = to_table("qrels", [{"query_id": q, "passage_id": p, "relevance": r} for q, p, r in rows])
    judged = verdicts("npc", [("q1", "p1", "drop"), ("q1", "p2", "drop"), ("q2", "p1", "keep")])
    left, dropped, trusted = split_pairs(qrels, [judged])
    assert not len(trusted)
    assert [(row["query_id"], row["passage_id"]) for row in left.to_pylist()] == [("q1", "p2"), ("q2", "p1")]
    assert [(row["query_id"], row["passage_id"]) for row in dropped.to_pylist()] == [("q1", "p1")]


def test_people_have_the_last_word_in_any_order():
    others = verdicts("margin", [("q", "p0", "drop"), ("q", "p1", "keep"), ("q", "p2", "relabel"), ("q", "p3", "drop")])
    people = verdicts("people_negatives", [("q", "p0", "keep"), ("q", "p1", "drop"), ("q", "p2", "drop")])
    for mined in (negatives(["keep"] * 4), negatives(["drop", "keep", "relabel", "keep"])):
        for tables in ([others, people], [people, others]):
            judged = judge_negatives(mined, tables)
            assert judged["action"].to_pylist() == ["keep", "drop", "drop", "drop"]
            assert judged["weight"].to_pylist() == [1.0, 0.0, 0.0, 0.0]


def test_who_looks_again_counts_in_place_of_the_judge_before_and_of_no_other():
    first = verdicts("guide", [("q", f"p{at}", action) for at, action in enumerate(["drop", "drop", "keep", "drop"])])
    again = verdicts("second", [("q", "p0", "keep"), ("q", "p1", "keep"), ("q", "p2", "relabel")])
    third, people = verdicts("sieve", [("q", "p1", "drop")]), verdicts("people_negatives", [("q", "p2", "keep")])
    for tables in ([first, again, third], [third, again, first]):
        judged = judge_negatives(negatives(["keep"] * 4), tables, {"second": "guide"})
        assert judged["action"].to_pylist() == ["keep", "drop", "relabel", "drop"]
        assert judged["weight"].to_pylist() == [1.0, 0.0, 0.0, 0.0]
    judged = judge_negatives(negatives(["keep"] * 4), [people, first, again], {"second": "guide"})
    assert judged["action"].to_pylist() == ["keep", "keep", "keep", "drop"]
    qrels = to_table("qrels", [{"query_id": "q", "passage_id": f"p{at}"} for at in range(4)])
    left, dropped, _ = split_pairs(qrels, [again, first], {"second": "guide"})
    assert (left["passage_id"].to_pylist(), dropped["passage_id"].to_pylist()) == (["p0", "p1", "p2"], ["p3"])


def test_pairs_that_people_call_right_stay_and_are_trusted():
    qrels = to_table("qrels", [{"query_id": "q", "passage_id": f"p{at}"} for at in range(4)])
    npc = verdicts("npc", [("q", "p0", "drop"), ("q", "p1", "keep"), ("q", "p2", "drop"), ("q", "p3", "keep")])
    people = verdicts("people", [("q", "p0", "keep"), ("q", "p1", "drop")])
    left, dropped, trusted = (table["passage_id"].to_pylist() for table in split_pairs(qrels, [people, npc]))
    assert (left, dropped, trusted) == (["p0", "p3"], ["p1", "p2"], ["p0"])


def test_counts_over_several_tables():
    tables = [
        verdicts(
            "sieve", [("a", "p1", "drop", 1.0, True), ("a", "p2", "keep", 0.5, False), ("b", "p1", "drop", 2.0, True)]
        ),
        verdicts("sieve", []),
        verdicts("sieve", [("c", "p1", "keep", -1.0, False), ("c", "p2", "keep", -2.0, True)]),
    ]
    summary = summarize_verdicts(Sieve(keep_minimum=1), tables)
    expected = {"verdicts": 5, "queries": 3, "keep": 3, "drop": 2, "queries_flagged": 2, "queries_empty": 1}
    assert {name: summary[name] for name in expected} == expected
    assert summary["kept_by_minimum"] == 1
    assert summary["flagged_share"] == pytest.approx(0.4)
    assert (summary["detection"]["precision"], summary["detection"]["recall"]) == (1.0, pytest.approx(2 / 3))
    assert "kept_by_minimum" not in summarize_verdicts(Margin(), tables)


def test_probabilities_are_checked_for_reliability_where_the_truth_is_known():
    known = verdicts("classifier", [("a", "p1", "drop", 0.95, True), ("a", "p2", "keep", 0.25, False)])
    detection = summarize_verdicts(Classifier(), [known])["detection"]
    assert detection["calibration_error"] == pytest.approx((0.05 + 0.25) / 2)
    assert sum(part["count"] for part in detection["bins"]) == 2
    unknown = verdicts("classifier", [("a", "p1", "drop", 0.95)])
    assert "detection" not in summarize_verdicts(Classifier(), [unknown])
