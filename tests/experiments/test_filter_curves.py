"""Curves of filters, against counting by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from experiments.candidate_scores import ScoredSplit, above_positive, relative_to_positive
from experiments.filter_curves import area_interval, operating_point, sampler_curve, threshold_curve
from raydr.negatives.samplers.simans import SimANS
from raydr.negatives.samplers.top import Top
from raydr.negatives.samplers.uniform import Uniform
from raydr.noise.judges.base import ScoredCandidates


def make_split(num_queries: int = 40, depth: int = 6) -> ScoredSplit:
    rng = np.random.default_rng(3)
    false_M = rng.random(num_queries * depth) < 0.2
    scores_M = rng.normal(np.where(false_M, 0.8, 0.2), 0.3)
    offsets = np.arange(0, num_queries * depth + 1, depth)
    candidates = ScoredCandidates(scores_M, offsets, np.full(num_queries, 1.0))
    return ScoredSplit(candidates, false_M, [f"q{at:02d}" for at in range(num_queries)])


def test_a_threshold_curve_is_the_roc() -> None:
    split = make_split()
    suspicion_M = np.round(split.candidates.scores_M, 1)
    curve = threshold_curve(suspicion_M, split.false_M)
    assert curve.area == pytest.approx(roc_auc_score(split.false_M, suspicion_M))
    for threshold in (0.1, 0.5, 0.9):
        above_M = suspicion_M >= threshold
        at = np.flatnonzero(np.isclose(curve.lost_T, above_M[~split.false_M].mean()))
        assert above_M[split.false_M].mean() == pytest.approx(curve.removed_T[at].max())
    assert (curve.lost_T[0], curve.removed_T[0], curve.lost_T[-1], curve.removed_T[-1]) == (0, 0, 1, 1)


def test_a_candidate_that_counts_twice_is_there_twice() -> None:
    split = make_split()
    scores_M, times_M = split.candidates.scores_M, np.tile([2.0, 0.0, 1.0], 80)
    counted = threshold_curve(scores_M, split.false_M, times_M)
    rows = np.repeat(np.arange(240), times_M.astype(int))
    assert counted.area == pytest.approx(roc_auc_score(split.false_M[rows], scores_M[rows]))


def test_margins_compare_with_each_querys_positive() -> None:
    candidates = ScoredCandidates(np.array([0.5, 1.0, -3.0]), np.array([0, 2, 3]), np.array([1.0, -2.0]))
    split = ScoredSplit(candidates, np.zeros(3, bool), ["a", "b"])
    assert above_positive(split).tolist() == [-0.5, 0.0, -1.0]
    assert relative_to_positive(split).tolist() == [-0.5, 0.0, -0.5]


def test_a_sampler_removes_what_it_does_not_draw() -> None:
    split = make_split()
    order = Top()
    curve = sampler_curve(order, split, scale=20.0, seed=0, num_draws=1)
    rank_M = np.tile(np.arange(6), 40)
    for num in range(7):
        left_out_M = rank_M >= num
        assert curve.removed_T[6 - num] == pytest.approx(left_out_M[split.false_M].mean())
        assert curve.lost_T[6 - num] == pytest.approx(left_out_M[~split.false_M].mean())
    # Drawn at random, both kinds are left out alike; a peak far below the positive leaves out what is near it.
    assert sampler_curve(Uniform(), split, 20.0, 0, 40).area == pytest.approx(0.5, abs=0.03)
    assert sampler_curve(SimANS(a=0.5, b=16.0), split, 20.0, 0, 10).area > 0.7


def test_an_operating_point_counts_and_its_intervals_hold_it() -> None:
    split = make_split()
    flagged_M = split.candidates.scores_M > 0.5
    point = operating_point(flagged_M, split.false_M, split.query_M, 300, seed=0)
    assert point.removed == pytest.approx(flagged_M[split.false_M].mean())
    assert point.lost == pytest.approx(flagged_M[~split.false_M].mean())
    assert point.removed_range[0] < point.removed < point.removed_range[1]
    assert point.lost_range[0] < point.lost < point.lost_range[1]
    low, high = area_interval(split.candidates.scores_M, split.false_M, split.query_M, 100, seed=0)
    assert low < threshold_curve(split.candidates.scores_M, split.false_M).area < high
    # Fewer false negatives than true ones: known less well.
    assert np.ptp(point.removed_range) > np.ptp(point.lost_range)
