"""Which other passages are taken for right: only where they stand out as they never do beside a right pair."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from raydr.noise.judges.asked import CrossFitted
from raydr.noise.judges.relabel import Relabel, probably_right, stands_out

NUM = 600


def scores_of(seed: int, num: int, right: float) -> NDArray[np.float64]:
    """u of queries whose best of 20 passages is right for a share of them: it then lies above the others."""
    rng = np.random.default_rng(seed)
    others = rng.normal(0.3, 0.1, (num, 20))
    others[: round(right * num), 0] = rng.normal(0.8, 0.1, round(right * num))
    return np.array([stands_out(np.sort(one)[::-1], 20.0) for one in others])


def both(seed: int, right: float, folds: int = 2) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.int64]]:
    u_Q = np.concatenate([scores_of(seed, NUM, right), scores_of(seed + 1, NUM, 0.0)])
    return u_Q, np.arange(2 * NUM) < NUM, np.arange(2 * NUM) % folds


@pytest.mark.invariant
@pytest.mark.parametrize("right", [0.0, 0.3, 0.7])
def test_probabilities_are_those_of_being_right(right: float) -> None:
    u_Q, wrong_Q, fold_Q = both(7, right)
    p_Q = probably_right(u_Q, wrong_Q, ~wrong_Q, fold_Q)
    assert not p_Q[NUM:].any()
    assert p_Q[:NUM].mean() == pytest.approx(right, abs=0.08)
    sure = np.flatnonzero(p_Q > 0.9)
    assert len(sure) >= 0.8 * right * NUM
    assert (sure < right * NUM).sum() >= 0.95 * len(sure)
    # The more it stands out, the surer.
    mine = np.flatnonzero(wrong_Q & (fold_Q == 0))
    assert (np.diff(p_Q[mine][np.argsort(u_Q[mine])]) <= 1e-12).all()


def test_without_queries_to_compare_with_nothing_is_taken_for_right() -> None:
    u_Q, wrong_Q, fold_Q = both(3, 0.7)
    nobody = np.zeros(2 * NUM, dtype=np.bool_)
    assert not probably_right(u_Q, wrong_Q, nobody, fold_Q).any()
    few = np.arange(2 * NUM) >= 2 * NUM - 8
    assert not probably_right(u_Q, wrong_Q, few, fold_Q).any()
    assert not probably_right(u_Q, nobody, ~wrong_Q, fold_Q).any()


def test_each_fold_is_compared_with_itself() -> None:
    """A model whose scores lie closer together would look unsure of all beside another."""
    u_Q, wrong_Q, fold_Q = both(5, 0.5)
    scaled_Q = np.where(fold_Q == 1, 3.0 * u_Q + 1.0, u_Q)
    before = probably_right(u_Q, wrong_Q, ~wrong_Q, fold_Q)
    np.testing.assert_array_equal(probably_right(scaled_Q, wrong_Q, ~wrong_Q, fold_Q), before)


def test_it_asks_the_folds_to_search() -> None:
    assert Relabel(depth=7).asks(None) == CrossFitted(depth=7)  # type: ignore[arg-type]
