"""Agreement of judges, statistics of false negatives, and the worst offenders, against loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import cohen_kappa_score

from raydr.data.inspection_report import SplitReport
from raydr.data.schema import to_table
from raydr.errors import DataError
from raydr.noise.agreement import Agreement, align
from raydr.noise.audit_result import AuditResult, PairFindings, inconclusive
from raydr.noise.false_negative_statistics import FalseNegativeStatistics
from raydr.noise.offenders import merge_offenders, worst_offenders
from raydr.pages.audit import audit_page, pair_rows


def test_a_judge_that_could_not_tell_has_found_no_share() -> None:
    """Where half was mismatched an audit said 0.0 %."""
    told = PairFindings("npc", 40, 0, None, None, "the two groups are too close", {"name": "npc"}, None)
    flags_none = replace(told, reason="")
    assert (told.share_flagged, flags_none.share_flagged) == (None, 0.0)
    nothing = Agreement.of(align([], []))
    counts = {name: 0 for name in SplitReport.model_fields if name.startswith(("num_", "most_"))}
    faultless = SplitReport(**counts, missing_passages=[], noise={}, answers=None, lengths=None)
    result = AuditResult(
        "train", "trained", "train", faultless, 0, 0, [told, flags_none], [], nothing, None, "npc", 0, 0
    )
    _, rows = pair_rows(result)
    assert [row[2:4] for row in rows] == [["inconclusive", "–"], ["0", "0.0%"]]
    assert "mismatched_share.npc" in replace(result, pairs=[flags_none]).numbers
    assert "mismatched_share.npc" not in replace(result, pairs=[told]).numbers
    for text in (inconclusive("npc", told.reason), audit_page(result, {"pairs": {}, "scores": {}}, {"npc": []})):
        assert "npc is inconclusive: the two groups are too close" in text
        assert "cross_fitted" in text
    assert "no dangling judgment, no copy that nobody judged" in text


def table_of(judge: str, rows: list[tuple[str, str, float, str]]) -> pa.Table:
    fields = ("query_id", "passage_id", "score", "action")
    named = [dict(zip(fields, row, strict=True)) for row in rows]
    return to_table("verdicts", [row | {"judge": judge, "weight": 1.0} for row in named])


def random_table(judge: str, seed: int, missing: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    pairs = [(f"q{at // 6}", f"p{at % 6}") for at in range(120)]
    kept = rng.permutation(120)[missing:]
    actions = np.where(rng.random(120) < 0.4, "drop", "keep")
    return table_of(judge, [(*pairs[at], float(rng.integers(5)), str(actions[at])) for at in kept])


def test_agreement_is_that_of_scikit_learn_on_what_both_judged() -> None:
    tables = [random_table("a", 0, 0), random_table("b", 1, 20)]
    aligned = align(["a", "b"], tables)
    both = aligned.judged_JM.all(axis=0)
    first, second = aligned.flagged_JM[:, both]
    found = Agreement.of(aligned)
    assert found.both_JJ[0, 1] == both.sum() == 100
    assert found.kappa_JJ[0, 1] == pytest.approx(cohen_kappa_score(first, second))
    assert found.kappa_JJ[0, 1] == pytest.approx(found.kappa_JJ[1, 0])
    assert found.overlap_JJ[0, 1] == pytest.approx((first & second).sum() / first.sum())


def test_agreement_of_parts_adds_up() -> None:
    tables = [random_table("a", 0, 3), random_table("b", 1, 20)]
    whole = Agreement.of(align(["a", "b"], tables))

    def part(queries: set[str]) -> Agreement:
        cut = [table.filter(pa.array([one in queries for one in table["query_id"].to_pylist()])) for table in tables]
        return Agreement.of(align(["a", "b"], cut))

    first = {f"q{at}" for at in range(7)}
    added = part(first) + part({f"q{at}" for at in range(20)} - first)
    assert (added.both_flagged_JJ == whole.both_flagged_JJ).all()
    assert (added.flagged_JJ == whole.flagged_JJ).all()
    with pytest.raises(DataError, match="cannot be added"):
        _ = whole + Agreement.of(align(["a"], tables[:1]))


def test_agreement_on_nothing_is_not_a_number() -> None:
    nothing = align(["a", "b"], [table_of("a", [("q", "x", 1.0, "keep")]), table_of("b", [("q", "y", 1.0, "keep")])])
    found = Agreement.of(nothing)
    assert found.both_JJ[0, 1] == 0
    assert np.isnan(found.kappa_JJ).all()
    assert np.isnan(found.overlap_JJ).all()


def test_of_two_verdicts_of_one_judge_on_a_passage_the_higher_score_counts() -> None:
    aligned = align(["a"], [table_of("a", [("q", "x", 2.0, "drop"), ("q", "x", 1.0, "keep")])])
    assert (aligned.passage_ids, aligned.actions_JM.tolist()) == (["x"], [["drop"]])


def test_statistics_of_false_negatives_add_up_and_agree_with_loops() -> None:
    rng = np.random.default_rng(3)
    query, rank, flagged = np.repeat(np.arange(30), 50), np.tile(np.arange(1, 51), 30), rng.random(1500) < 0.02
    whole = FalseNegativeStatistics.count(query, rank, flagged)
    first = query < 11
    added = sum(
        (FalseNegativeStatistics.count(query[part], rank[part], flagged[part]) for part in (first, ~first)),
        FalseNegativeStatistics.none(),
    )
    assert (added.queries_by_number == whole.queries_by_number).all()
    assert (added.flagged_by_rank == whole.flagged_by_rank).all()
    numbers = [int(flagged[query == one].sum()) for one in range(30)]
    affected = [one for one in numbers if one]
    assert (added.num_queries, added.max_number) == (30, max(numbers))
    assert added.share_of_queries == len(affected) / 30
    assert added.mean_number == pytest.approx(sum(affected) / len(affected))
    assert added.share_within(10) == pytest.approx((rank[flagged] <= 10).mean())
    assert added.share_flagged == pytest.approx(flagged.mean())


def test_statistics_of_nothing_are_none_and_not_zero() -> None:
    empty = FalseNegativeStatistics.none()
    assert (empty.share_flagged, empty.share_of_queries, empty.mean_number, empty.share_within(10)) == (None,) * 4
    assert (empty.max_number, empty.num_queries) == (0, 0)
    with pytest.raises(DataError, match="differ in number"):
        FalseNegativeStatistics.count(np.zeros(2, np.int64), np.zeros(1, np.int64), np.zeros(2, bool))


def test_offenders_are_the_highest_scores_one_a_query() -> None:
    margin = [("q1", "a", 3.0, "drop"), ("q1", "b", 9.0, "drop"), ("q2", "a", 5.0, "drop"), ("q3", "c", 99.0, "keep")]
    sieve = [("q1", "b", 0.1, "drop"), ("q2", "a", -1.0, "keep")]
    aligned = align(["margin", "sieve"], [table_of("margin", margin), table_of("sieve", sieve)])
    found = worst_offenders(aligned, "margin", 5, np.ones(4, bool))
    assert [(one.query_id, one.passage_id, one.score) for one in found] == [("q1", "b", 9.0), ("q2", "a", 5.0)]
    assert [(one.flagged_by, one.not_flagged_by) for one in found] == [(("sieve",), ()), ((), ("sieve",))]
    assert worst_offenders(aligned, "margin", 5, np.array([True, False, False, True]))[0].passage_id == "a"
    assert merge_offenders([found[1:], found[:1]], 1) == found[:1]
