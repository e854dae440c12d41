import math

import numpy as np
import pytest

from raydr.errors import DataError
from raydr.noise.margins import mean_margins, npc_margins, random_pair_margins


def test_equals_reference_loop():
    rng = np.random.default_rng(0)
    positive, random = rng.normal(size=20), rng.normal(size=(20, 7))
    random[3, 2] = -np.inf
    expected = [
        -math.log(math.exp(s) / (math.exp(s) + sum(math.exp(other) for other in row)))
        for s, row in zip(positive, random, strict=True)
    ]
    # The perplexity is the soft-plus of the margin.
    np.testing.assert_allclose(np.logaddexp(0.0, npc_margins(positive, random)), expected)


def test_far_scores_neither_overflow_nor_vanish():
    assert npc_margins([1000.0, 0.0, 20.0], [[0.0], [1000.0], [-20.0]]).tolist() == [-1000.0, 1000.0, -40.0]


def test_shift_invariant():
    rng = np.random.default_rng(0)
    positive, random = rng.normal(size=20), rng.normal(size=(20, 7))
    np.testing.assert_allclose(npc_margins(positive + 50, random + 50), npc_margins(positive, random))


@pytest.mark.parametrize(
    ("positive", "random", "match"),
    [
        ([0.0], [[0.0], [1.0]], "shape"),
        ([0.0], [[]], "shape"),
        ([0.0, np.nan], [[0.0], [1.0]], "pair 1"),
        ([0.0, 0.0], [[0.0], [np.inf]], "pair 1"),
        ([0.0, 0.0], [[0.0], [-np.inf]], "all random passages of pair 1"),
    ],
)
def test_bad_scores_are_refused(positive, random, match):
    with pytest.raises(DataError, match=match):
        npc_margins(positive, random)


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
        expected.append(float(npc_margins([chosen], [counting])[0]))
    np.testing.assert_allclose(random_pair_margins(random, column), expected, rtol=1e-9)
    assert np.isnan(expected).sum() == 2


def test_a_random_passage_above_the_others_keeps_its_distance():
    assert random_pair_margins([[60.0, 20.0, -np.inf], [800.0, 0.5, -np.inf]], [0, 0]).tolist() == [-40.0, -799.5]


def test_a_pair_is_compared_with_the_mean_of_random_passages():
    """A single random passage that is near the query hardly matters; the log-sum-exp is decided by it."""
    far, near = [[0.0] * 99 + [1.0]], [[0.0] * 99 + [20.0]]
    assert mean_margins([10.0], near) - mean_margins([10.0], far) < 0.2
    assert npc_margins([10.0], near) - npc_margins([10.0], far) > 9
    np.testing.assert_allclose(mean_margins([1.0], [[4.0]]), npc_margins([1.0], [[4.0]]))
    with pytest.raises(DataError, match="pair 1"):
        mean_margins([0.0, 0.0], [[0.0], [np.nan]])
