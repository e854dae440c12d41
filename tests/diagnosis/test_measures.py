"""Measures of the evidence against reference implementations."""

from __future__ import annotations

import numpy as np
from scipy.stats import kstest

from raydr.diagnosis.evidence import apart, beside_others, leaning, pair_p_values, reciprocal_ranks
from raydr.evaluation.metrics import parse_measures, score_queries


def test_reciprocal_ranks_are_those_of_ir_measures() -> None:
    rng = np.random.default_rng(0)
    scores_QP = rng.normal(size=(60, 40))
    positive_QP = rng.uniform(size=(60, 40)) < 0.05
    positive_QP[np.arange(60), rng.integers(40, size=60)] = True
    qrels = {f"q{at}": {f"p{row}": 1 for row in np.flatnonzero(row_P)} for at, row_P in enumerate(positive_QP)}
    ranking = {f"q{at}": [f"p{row}" for row in np.argsort(-row_P)] for at, row_P in enumerate(scores_QP)}
    expected = score_queries(parse_measures(["RR@10"]), qrels, ranking)["RR@10"]
    ranks = reciprocal_ranks(scores_QP, positive_QP)
    np.testing.assert_allclose(ranks, [expected[f"q{at}"] for at in range(60)])
    assert 0 < np.mean(ranks == 0) < 1


def test_a_model_that_cannot_tell_finds_nothing_wherever_the_positive_stands() -> None:
    positive_QP = np.zeros((3, 100), dtype=bool)
    positive_QP[[0, 1, 2], [0, 50, 99]] = True
    assert reciprocal_ranks(np.ones((3, 100)), positive_QP).tolist() == [0.0, 0.0, 0.0]
    elsewhere_QP = np.where(positive_QP, -np.inf, 1.0)
    assert reciprocal_ranks(elsewhere_QP, positive_QP).tolist() == [0.0, 0.0, 0.0]


def test_p_of_mismatched_pairs_is_uniform_with_and_without_ties() -> None:
    rng = np.random.default_rng(1)
    for scores_QP in (rng.normal(size=(2000, 30)), rng.poisson(0.3, size=(2000, 30)).astype(float)):
        pair_Q = rng.integers(30, size=2000)
        null_QP = np.ones((2000, 30), dtype=bool)
        null_QP[np.arange(2000), pair_Q] = False
        p_Q = pair_p_values(scores_QP, pair_Q, null_QP, np.random.default_rng(2))
        # Without ties p has 30 values: a thirtieth more than the usual distance.
        assert kstest(p_Q, "uniform").statistic < 0.03


def test_others_of_a_batch_are_those_that_may_be_drawn() -> None:
    scores_QP = np.arange(20.0).reshape(2, 10)
    null_QP = np.zeros((2, 10), dtype=bool)
    null_QP[:, [2, 4, 6]] = True
    found_QC = beside_others(scores_QP, np.array([9, 9]), null_QP, 50, np.random.default_rng(0))
    assert found_QC[:, 0].tolist() == [9.0, 19.0]
    assert np.sort(found_QC[:, 1:]).tolist() == [[2.0, 4.0, 6.0], [12.0, 14.0, 16.0]]


def leaning_apart(vectors_QD: np.ndarray, passages_QD: np.ndarray, pair_Q: np.ndarray, num: int) -> float:
    """How far the first queries, whose passages are the first ones in some order, are from the others."""
    scores_QU, first_Q = vectors_QD @ passages_QD.T, np.arange(len(pair_Q)) < num
    own_QU = np.eye(len(pair_Q), dtype=bool)[pair_Q]
    return apart(
        leaning(scores_QU[:num], own_QU[:num], first_Q, ~first_Q),
        -leaning(scores_QU[num:], own_QU[num:], ~first_Q, first_Q),
    )


def test_queries_of_another_kind_are_told_from_mismatched_pairs() -> None:
    rng = np.random.default_rng(3)
    topics_QD = rng.normal(size=(500, 32))
    other_QD = topics_QD + 4 * np.eye(32)[0] * (np.arange(500) >= 300)[:, None]
    right_Q = np.arange(500)
    shifted_Q = np.where(right_Q < 300, (right_Q + 1) % 300, right_Q)
    noise_QD = rng.normal(size=(500, 32))
    for pair_Q in (right_Q, shifted_Q):
        assert leaning_apart(topics_QD + noise_QD, topics_QD, pair_Q, 300) < 0.05
        assert leaning_apart(other_QD + noise_QD, other_QD, pair_Q, 300) > 0.4
