"""Precision and recall of a judge from some decisions, against what all of them would say."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from raydr.noise.reviewed import estimate_quality, evidence

NUM = 3_000


def judged(rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """A judge's evidence and the truth: two groups, and log-odds that are too sure and shifted."""
    wrong_N = rng.random(NUM) < rng.uniform(0.1, 0.6)
    shift, slope = rng.normal(0.0, 1.0), rng.uniform(0.5, 1.5)
    # With normal margins of one spread the true log-odds are a line in the margin.
    margin_N = np.where(wrong_N, 1.5, -1.5) + rng.normal(0.0, 1.0, NUM)
    odds = np.log(wrong_N.mean() / (1 - wrong_N.mean()))
    return (3.0 * margin_N + odds) / slope - shift, wrong_N


def chosen(order: str, evidence_N: NDArray[np.float64], num: int) -> NDArray[np.int64]:
    if order == "worst":
        return np.argsort(-evidence_N)[:num]
    half = np.argsort(-evidence_N)[: num // 2]
    doubtful = np.argsort(np.abs(evidence_N))[:num]
    return doubtful if order == "informative" else np.unique(np.concatenate([half, doubtful[: num // 2]]))


@pytest.mark.parametrize("order", ["worst", "informative", "both"])
def test_intervals_hold_what_everybodys_decision_would_give(order: str) -> None:
    """95 % of them; 100 judges, so fewer than 85 would be the fault of the intervals."""
    rng, held, widths = np.random.default_rng(3), np.zeros(2), np.zeros(2)
    for _ in range(100):
        evidence_N, wrong_N = judged(rng)
        flagged_N = evidence_N > 0
        at = chosen(order, evidence_N, 60)
        quality = estimate_quality(evidence_N, flagged_N, at, wrong_N[at])
        truth = wrong_N[flagged_N].mean(), flagged_N[wrong_N].mean()
        for number, (interval, value) in enumerate(zip((quality.precision, quality.recall), truth, strict=True)):
            assert 0.0 <= interval.low <= interval.value <= interval.high <= 1.0
            held[number] += interval.low - 0.005 <= value <= interval.high + 0.005
            widths[number] += interval.high - interval.low
    assert (held >= 85).all(), held
    # They also say something, most where both the surest and the doubtful were looked at.
    assert (widths / 100 < (0.35 if order == "both" else 0.65)).all(), widths


def test_what_is_decided_counts_as_it_is() -> None:
    """Where people have seen everything nothing is estimated."""
    evidence_N, wrong_N = judged(np.random.default_rng(0))
    flagged_N = evidence_N > 0.5
    quality = estimate_quality(evidence_N, flagged_N, np.arange(NUM), wrong_N)
    assert tuple(quality.precision) == pytest.approx([wrong_N[flagged_N].mean()] * 3)
    assert tuple(quality.recall) == pytest.approx([flagged_N[wrong_N].mean()] * 3)
    assert (quality.num_decided, quality.num_wrong) == (NUM, wrong_N.sum())


def test_decisions_move_a_judge_that_is_too_sure() -> None:
    evidence_N = np.linspace(-6.0, 6.0, 400)
    flagged_N = evidence_N > 0
    at = np.flatnonzero(flagged_N)[::5]
    believed = estimate_quality(evidence_N, flagged_N, at, np.ones(len(at), np.bool_))
    doubted = estimate_quality(evidence_N, flagged_N, at, np.arange(len(at)) % 2 == 0)
    assert believed.precision.low > 0.9
    assert doubted.precision.high < 0.75
    assert doubted.precision.low < 0.5 < doubted.precision.high


def test_a_judge_that_flags_nothing_has_evidence_all_the_same() -> None:
    scores_N, none_N = np.array([3.0, 1.0, 2.0]), np.zeros(3, np.bool_)
    assert evidence(scores_N, none_N).max() == 0.0
    quality = estimate_quality(evidence(scores_N, none_N), none_N, np.array([0]), np.array([True]))
    assert (quality.precision.high, quality.recall.high) == (0.0, 0.0)
    assert evidence(np.ones(3), none_N).tolist() == [0.0] * 3
