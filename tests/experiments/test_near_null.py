"""Flags by a null of near passages, on scores whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.near_null import Pairs, cells


def pairs(lead: float) -> Pairs:
    """300 right pairs that score ``lead`` more than the best of their 120 near passages."""
    rng = np.random.default_rng(0)
    num = 300
    near_NP = np.abs(np.subtract.outer(np.arange(num), np.arange(num))) <= 60
    scores_NP = rng.normal(0.0, 1.0, (num, num)) + 6.0 * near_NP
    np.fill_diagonal(scores_NP, -np.inf)
    best_N = scores_NP.max(axis=1)
    order_NR = np.argsort(-scores_NP, axis=1)[:, :-1]
    np.fill_diagonal(scores_NP, best_N + lead + rng.normal(0.0, 0.5, num))
    return Pairs(scores_NP, order_NR, np.arange(num), np.zeros(num, np.bool_))


@pytest.mark.parametrize(("near", "recall"), [(False, 0.0), (True, 1.0)])
def test_near_misses_need_a_near_null_where_right_pairs_rank_first(near: bool, recall: float) -> None:
    mismatched = pairs(lead=2.0).mismatched(0.3, near=True, rng=np.random.default_rng(1))
    flagged_N = mismatched.flags(near, np.random.default_rng(2))
    assert flagged_N[mismatched.wrong_N].mean() == pytest.approx(recall, abs=0.05)
    assert flagged_N[~mismatched.wrong_N].mean() < 0.05


def test_a_near_null_flags_right_pairs_that_rank_behind_near_passages() -> None:
    right = pairs(lead=-3.0)
    assert right.flags(True, np.random.default_rng(2)).mean() > 0.5
    assert right.flags(False, np.random.default_rng(2)).mean() < 0.05


def test_cells_are_means_with_their_range() -> None:
    flagged = [np.array([True, True, False, False]), np.array([True, False, False, False])]
    wrong = [np.array([True, False, False, False])] * 2
    assert cells(flagged, wrong) == ["0.375 (0.250 to 0.500)", "0.750 (0.500 to 1.000)", "1.000 (1.000 to 1.000)"]
    assert cells(flagged, [np.zeros(4, np.bool_)] * 2)[1:] == ["", ""]
