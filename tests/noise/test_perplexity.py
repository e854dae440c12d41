import math

import numpy as np
import pytest

from raydr.errors import DataError
from raydr.noise.perplexity import mean_perplexities, perplexities, random_pair_perplexities


def test_equals_reference_loop():
    rng = np.random.default_rng(0)
    positive, random = rng.normal(size=20), rng.normal(size=(20, 7))
    random[3, 2] = -np.inf
    expected = [
        -math.log(math.exp(s) / (math.exp(s) + sum(math.exp(other) for other in row)))
        for s, row in zip(positive, random, strict=True)
    ]
    np.testing.assert_allclose(perplexities(positive, random), expected)


def test_far_scores_neither_overflow_nor_vanish():
    got = perplexities([1000.0, 0.0, 20.0], [[0.0], [1000.0], [-20.0]])
    assert got[1] == 1000.0
    assert got[0] == 0.0
    assert got[2] == pytest.approx(math.exp(-40.0), rel=1e-12)


def test_shift_invariant():
    rng = np.random.default_rng(0)
    positive, random = rng.normal(size=20), rng.normal(size=(20, 7))
    np.testing.assert_allclose(perplexities(positive + 50, random + 50), perplexities(positive, random))


@pytest.mark.parametrize(
    ("positive", "random", "match"),
    [
        ([0.0], [[0.0], [1.0]], "shape"),
        ([0.0], [[]], "shape"),
        ([0.0, np.nan], [[0.0], [1.0]], "pair 1"),
        ([0.0, 0.0], [[0.0], [np.inf]], "pair 1"),
        ([0.0, 0.0], [[0.0], [-np.inf]], "pair 1 has no random passage"),
    ],
)
def test_bad_scores_are_refused(positive, random, match):
    with pytest.raises(DataError, match=match):
        perplexities(positive, random)


def test_random_pairs_equal_a_loop_that_leaves_one_out():
    rng = np.random.default_rng(0)
    random, column = rng.normal(size=(20, 7)), rng.integers(20, size=20)
    random[3, [0, 2]] = random[4, 1:] = random[5] = -np.inf
    expected = []
    for row, at in zip(random, column, strict=True):
        counting = [score for score in row if score > -np.inf]
        if len(counting) < 2:
            expected.append(math.nan)
            continue
        chosen = counting.pop(at % len(counting))
        expected.append(float(perplexities([chosen], [counting])[0]))
    np.testing.assert_allclose(random_pair_perplexities(random, column), expected, rtol=1e-9)
    assert np.isnan(expected).sum() == 2


def test_a_random_passage_far_above_the_others_has_no_negative_perplexity():
    perplexity_N = random_pair_perplexities([[800.0, 0.1, 0.2], [0.3, 0.1, 700.7]], [0, 2])
    assert (perplexity_N >= 0).all()
    assert (perplexity_N < 1e-300).all()


def test_a_random_passage_above_the_others_keeps_its_distance():
    """A 0 here would be the outlier that an anchored detector's mean and variance cannot take."""
    perplexity_N = random_pair_perplexities([[60.0, 20.0, -np.inf]], [0])
    np.testing.assert_allclose(perplexity_N, np.exp(-40.0), rtol=1e-9)


def test_a_pair_is_compared_with_the_mean_of_random_passages():
    """A single random passage that is near the query hardly matters; the perplexity is decided by it."""
    far, near = [[0.0] * 99 + [1.0]], [[0.0] * 99 + [20.0]]
    assert mean_perplexities([10.0], near) - mean_perplexities([10.0], far) < 1e-4
    assert perplexities([10.0], near) - perplexities([10.0], far) > 9
    np.testing.assert_allclose(mean_perplexities([1.0], [[4.0]]), perplexities([1.0], [[4.0]]))
    with pytest.raises(DataError, match="pair 1"):
        mean_perplexities([0.0, 0.0], [[0.0], [np.nan]])
