"""What an audit says in sentences: how many, how sure, what next."""

from __future__ import annotations

from typing import Any

import pytest

from raydr.data.inspection_report import SplitReport
from raydr.noise.audit_result import AuditResult, NegativeFindings, PairFindings, inconclusive
from raydr.pages.audit import audit_page, pair_rows


def pairs_of(**changes: Any) -> PairFindings:
    known = {"judge": "npc", "num_judged": 1215, "num_flagged": 430, "num_expected": None, "num_expected_flagged": None}
    known |= {"share_estimated": None, "reason": "", "settings": {"name": "npc"}, "detection": None}
    return PairFindings(**{**known, **changes})


def result_of(pairs: list[PairFindings], negatives: list[NegativeFindings] | None = None) -> AuditResult:
    counts = {name: 0 for name in SplitReport.model_fields if name.startswith(("num_", "most_"))}
    return AuditResult(
        split="train",
        model="trained",
        train_split="train",
        data=SplitReport(**counts, missing_passages=[], noise={}, answers=None, lengths=None),
        num_leaked=0,
        num_left_out=0,
        pairs=pairs,
        negatives=negatives or [],
    )


def test_the_headline_says_how_many_and_how_sure() -> None:
    findings = pairs_of(num_expected=450.0, num_expected_flagged=412.8)
    assert result_of([findings]).headline == (
        "430 of 1,215 pairs (35.4%) are probably wrong, by npc. Its probabilities expect 96% of these to be wrong, and "
        "about 37 clearly wrong pairs among those it keeps."
    )
    assert "raydr evaluate my.yaml --set variants.npc.loss=npc" in result_of([findings]).advice("my.yaml")
    known = pairs_of(detection={"precision": 0.83, "recall": None})
    assert result_of([known]).headline.endswith("On injected noise: precision 0.83.")


def test_where_no_pair_is_flagged_no_share_of_these_is_given() -> None:
    findings = pairs_of(num_flagged=0, num_expected=3.0, num_expected_flagged=0.0)
    assert findings.sentences.endswith(
        "(0.0%) are probably wrong, by npc. Its probabilities expect about 3 clearly wrong pairs among those it keeps."
    )
    assert "train on all of them" in result_of([findings]).advice("my.yaml")
    # On 400 pairs of CoSQA, 17 % judged wrong, an audit expected no wrong pair and said no more.
    assert "resemble their query" in result_of([findings]).caveat
    assert not result_of([pairs_of()]).caveat
    assert not result_of([pairs_of(num_flagged=0, reason="too close")]).caveat


def test_a_judge_that_could_not_tell_has_found_no_share() -> None:
    """Where half was mismatched an audit said 0.0 %."""
    findings = pairs_of(num_judged=400, num_flagged=0, reason="the two groups are too close")
    flags_none = pairs_of(num_judged=400, num_flagged=0)
    assert (findings.share_flagged, flags_none.share_flagged) == (None, 0.0)
    result = result_of([findings, flags_none])
    _, rows = pair_rows(result)
    assert [row[2:4] for row in rows] == [["inconclusive", "–"], ["0", "0.0%"]]
    assert "mismatched_share.npc" in result_of([flags_none]).numbers
    assert "mismatched_share.npc" not in result_of([findings]).numbers
    assert "None of them is flagged: these have the highest scores" in audit_page(result, [], {"pairs": []})
    for text in (inconclusive("npc", findings.reason, 400), result.headline, audit_page(result, [], {"pairs": []})):
        assert "npc is inconclusive: the two groups are too close" in text
        assert "cross_fitted" in text
    # Six pairs of a dev split were to be judged with another kind of margins.
    assert "needs more pairs than these 6" in (few := inconclusive("npc", findings.reason, 6))
    assert "cross_fitted" not in few


def test_without_a_judge_of_pairs_the_candidates_are_the_answer() -> None:
    counts = {"num_queries": 4, "num_queries_flagged": 2, "num_candidates": 40, "num_flagged": 3}
    known = {"num_flagged_in_top_10": 3, "settings": {"name": "margin"}, "detection": None}
    negatives = NegativeFindings(judge="margin", **counts, **known)
    result = result_of([], [negatives])
    assert result.headline == "3 of 40 candidates (7.5%), in 2 of 4 queries, probably answer their query, by margin."
    assert result.suspected_by == ""
    assert result.advice("my.yaml").startswith("raydr review my.yaml")
    planted = negatives.model_copy(update={"detection": {"recall": 0.859}})
    assert planted.sentences.endswith("by margin. It flags 86% of the known false negatives.")
    assert result.numbers == pytest.approx(
        {"false_negative_share.margin": 0.075, "queries_with_false_negative.margin": 0.5}
    )
