import math

import numpy as np
import pytest

from raydr.errors import DataError
from raydr.noise.perplexity import perplexities


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
