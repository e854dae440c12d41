"""Intervals and tests against scipy, and against loops."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from raydr.evaluation.significance import bootstrap_intervals, bootstrap_means, holm, randomization_tests


def randomization_test(differences: np.ndarray, num_permutations: int, seed: int) -> float:
    """Of one comparison alone."""
    [p] = randomization_tests(differences[:, None], num_permutations, seed)
    return p


def test_bootstrap_agrees_with_scipy() -> None:
    values = np.random.default_rng(3).beta(0.4, 0.6, size=300)
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, confidence_level=0.9, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    ours = bootstrap_intervals(values[:, None], 0.9, 20_000, seed=2)[0]
    assert ours.mean == pytest.approx(values.mean())
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.002)


@pytest.mark.invariant
def test_blocks_of_samples_draw_the_same_as_one_sample_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).random((40, 3))
    whole = bootstrap_means(values, 50, seed=9)
    monkeypatch.setattr("raydr.evaluation.significance._BLOCK_CELLS", 40)
    assert bootstrap_means(values, 50, seed=9) == pytest.approx(whole)
    rng = np.random.default_rng(9)
    expected = [values[rng.integers(40, size=(1, 40))[0]].mean(axis=0) for _ in range(50)]
    assert whole == pytest.approx(np.array(expected))


def test_columns_are_resampled_together() -> None:
    values = np.random.default_rng(0).random((50, 1))
    means = bootstrap_means(np.hstack([values, values + 0.25]), 100, seed=0)
    assert means[:, 1] - means[:, 0] == pytest.approx(np.full(100, 0.25))


@pytest.mark.parametrize("seed", range(6))
def test_exact_randomization_equals_scipy(seed: int) -> None:
    differences = np.random.default_rng(seed).integers(-3, 5, size=10).astype(float)
    theirs = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=True
    ).pvalue
    assert randomization_test(differences, 2000, seed=0) == pytest.approx(theirs)


def test_sampled_randomization_is_near_the_exact_value() -> None:
    differences = np.random.default_rng(5).normal(0.3, 1.0, size=14)
    exact = randomization_test(differences, 2**14, seed=0)
    sampled = randomization_test(differences, 2**14 - 1, seed=0)
    assert 0 < exact < 1
    assert sampled == pytest.approx(exact, abs=0.02)
    assert sampled != exact


def test_equal_systems_have_p_one_and_different_ones_the_smallest() -> None:
    assert randomization_test(np.zeros(30), 1000, seed=0) == 1.0
    assert randomization_test(np.ones(50), 999, seed=0) == pytest.approx(1 / 1000)


def test_p_values_are_uniform_where_nothing_differs() -> None:
    rng = np.random.default_rng(11)
    p_values = [randomization_test(rng.normal(size=25), 200, seed=at) for at in range(300)]
    assert stats.kstest(p_values, "uniform").pvalue > 0.001


@pytest.mark.invariant
def test_comparisons_tested_together_get_what_each_gets_alone() -> None:
    rng = np.random.default_rng(4)
    few = np.where(np.arange(40) < 6, 1.0, 0.0)
    together = np.column_stack([rng.normal(0.2, 1, 40), few, np.zeros(40), rng.normal(0, 1, 40)])
    alone = [randomization_test(column, 1000, seed=3) for column in together.T]
    assert randomization_tests(together, 1000, seed=3) == pytest.approx(alone, abs=1e-12)
    assert alone[1:3] == [2 / 2**6, 1.0]


def test_holm_equals_its_definition() -> None:
    p_values = np.random.default_rng(2).random(7) / 4
    order = np.argsort(p_values)
    expected = np.empty(7)
    for step, at in enumerate(order):
        expected[at] = max(min(1.0, (7 - earlier) * p_values[order[earlier]]) for earlier in range(step + 1))
    assert holm(list(p_values)) == pytest.approx(expected)
    assert holm([]) == []
