"""Measures of wrong labels: equal to scikit-learn's, over queries, and silent where nothing is defined."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from raydr.errors import DataError
from raydr.evaluation.noise_measures import (
    FLAGS,
    RANKING,
    MethodScores,
    bootstrap_weights,
    measure_flags,
    measure_method,
    measure_ranking,
    share_by_source,
)


@pytest.mark.parametrize("num_values", [5, 10_000], ids=["ties", "no ties"])
def test_a_weighted_ranking_is_measured_as_scikit_learn_does(num_values: int) -> None:
    rng = np.random.default_rng(0)
    wrong_N = rng.random(300) < 0.3
    suspicion_N = np.floor(rng.random(300) * num_values + wrong_N * num_values / 3)
    weight_SN = rng.integers(0, 4, size=(5, 300)).astype(float)
    for weight_N, (average, _, area) in zip(
        weight_SN, measure_ranking(wrong_N, suspicion_N, weight_SN).tolist(), strict=True
    ):
        assert average == pytest.approx(average_precision_score(wrong_N, suspicion_N, sample_weight=weight_N))
        assert area == pytest.approx(roc_auc_score(wrong_N, suspicion_N, sample_weight=weight_N))


def test_precision_is_read_where_half_of_the_wrong_labels_are_above() -> None:
    wrong_N = np.array([True, False, True, False, True, True])
    ranked = -np.arange(6.0)
    # Half of four is reached at the third pair.
    assert measure_ranking(wrong_N, ranked, np.ones((1, 6)))[0, 1] == pytest.approx(2 / 3)
    # Two of equal suspicion are above the threshold together.
    ranked[3] = ranked[2]
    assert measure_ranking(wrong_N, ranked, np.ones((1, 6)))[0, 1] == pytest.approx(2 / 4)


def test_flags_are_counted_and_their_probability_compared() -> None:
    wrong_N = np.array([True, True, False, False])
    flagged_N = np.array([True, False, True, False])
    probability_N = np.array([0.9, 0.4, 0.7, 0.1])
    assert measure_flags(wrong_N, flagged_N, probability_N, np.ones((1, 4)))[0] == pytest.approx([0.5, 0.5, 0.5, 0.3])
    none = measure_flags(wrong_N, np.zeros(4, np.bool_), probability_N, np.ones((1, 4)))[0]
    assert none[[0, 2]].tolist() == [0.0, 0.0]
    assert np.isnan(none[[1, 3]]).all()


def test_samples_draw_queries_with_all_of_their_pairs() -> None:
    query_N = np.array([0, 0, 1, 2, 2, 2])
    weight_SN = np.concatenate(list(bootstrap_weights(query_N, 50, seed=3)))
    assert weight_SN.shape == (50, 6)
    assert (weight_SN[:, [0, 2, 3]].sum(axis=1) == 3).all()
    for first, others in ((0, [1]), (3, [4, 5])):
        assert (weight_SN[:, others] == weight_SN[:, [first]]).all()


def test_intervals_hold_the_figure_and_widen_where_pairs_hang_together() -> None:
    rng = np.random.default_rng(1)
    wrong_N = np.repeat(rng.random(100) < 0.4, 10)
    suspicion_N = np.repeat(rng.normal(size=100), 10) + wrong_N
    scores = MethodScores("m", suspicion_N, suspicion_N > 0.5)
    together = measure_method(scores, wrong_N, np.repeat(np.arange(100), 10), num_samples=300)
    apart = measure_method(scores, wrong_N, np.arange(1000), num_samples=300)
    assert set(together.measures) == {*RANKING, *FLAGS} - {"calibration"}
    for name, interval in together.measures.items():
        assert interval.low < interval.mean < interval.high
        assert interval.mean == apart.measures[name].mean
        assert interval.high - interval.low > 1.5 * (apart.measures[name].high - apart.measures[name].low)


def test_shares_and_flags_by_source() -> None:
    wrong_N = np.array([True, False, False, True])
    sources = ["log", "log", "forum", "forum"]
    scores = MethodScores("m", np.array([4.0, 3.0, 2.0, 1.0]), np.array([True, True, False, False]))
    figures = measure_method(scores, wrong_N, np.arange(4), sources, num_samples=50)
    assert {source: interval.mean for source, interval in figures.flags_by_source.items()} == {"forum": 0, "log": 1}
    assert set(figures.measures).isdisjoint(sources)
    shares = share_by_source(wrong_N, np.arange(4), sources, num_samples=50)
    assert [shares[source].mean for source in ("forum", "log")] == [0.5, 0.5]


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(DataError, match="all 3 labels are alike"):
        measure_method(MethodScores("m", np.arange(3.0)), np.ones(3, np.bool_), np.arange(3))
    with pytest.raises(DataError, match="method m: the suspicion of pair 1 is nan"):
        MethodScores("m", np.array([0.0, np.nan]))
    with pytest.raises(DataError, match="method m"):
        MethodScores("m", np.zeros(2), np.zeros(3, np.bool_))
