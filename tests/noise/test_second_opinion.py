"""P(wrong) by two readers: calibrated without a label, and never worse for a reader that knows nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydr.noise.detection_report import report_detection
from raydr.noise.judges.base import BoolArray, FloatArray
from raydr.noise.second_opinion import second_opinion


def made(seed: int, apart: float, num: int = 3000) -> tuple[FloatArray, BoolArray, FloatArray]:
    """What a calibrated first judge suspects, what is wrong, and the second reader's log-odds."""
    rng = np.random.default_rng(seed)
    suspected_N = rng.uniform(0.1, 0.9, num)
    wrong_N = rng.random(num) < suspected_N
    return suspected_N, wrong_N, rng.normal(np.where(wrong_N, -apart / 2, apart / 2))


def probability(log_odds_N: FloatArray) -> FloatArray:
    return np.asarray(1.0 / (1.0 + np.exp(-log_odds_N)))


@pytest.mark.parametrize("apart", [0.5, 1.0, 2.0, 4.0])
def test_it_is_calibrated_and_knows_more_than_the_first_judge(apart: float) -> None:
    suspected_N, wrong_N, log_odds_N = made(3, apart)
    after_N, facts = second_opinion(suspected_N, probability(log_odds_N))
    assert facts["separation"] == pytest.approx(apart, abs=0.25)
    before, after = (report_detection(wrong_N, one_N > 0.5, one_N, one_N) for one_N in (suspected_N, after_N))
    assert after.calibration_error is not None
    assert after.calibration_error < 0.05
    # What both together know exactly, by Bayes' rule with the distributions that were drawn from.
    best_N = probability(np.log(suspected_N / (1 - suspected_N)) - apart * log_odds_N)
    best = report_detection(wrong_N, best_N > 0.5, best_N, best_N)
    assert before.auroc is not None
    assert best.auroc is not None
    assert after.auroc is not None
    assert before.auroc < after.auroc
    assert after.auroc == pytest.approx(best.auroc, abs=0.01)


@given(st.floats(-3, 3), st.floats(0.2, 3))
def test_the_readers_own_scale_does_not_matter(shift: float, slope: float) -> None:
    suspected_N, _, log_odds_N = made(1, 2.0, 300)
    plain_N, _ = second_opinion(suspected_N, probability(log_odds_N))
    other_N, _ = second_opinion(suspected_N, probability(shift + slope * log_odds_N))
    np.testing.assert_allclose(other_N, plain_N, atol=0.01)


@pytest.mark.parametrize(("low", "num"), [(0.1, 60), (0.1, 3000), (0.3, 300), (0.4, 2000)])
def test_a_reader_that_falls_into_two_groups_of_its_own_is_not_believed(low: float, num: int) -> None:
    """By chance each of them leans to one side, and all labels of a group would be called wrong."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        suspected_N = rng.uniform(low, 1.0 - low, num)
        groups_N = np.where(rng.random(num) < 0.5, -5.0, 5.0) + rng.normal(size=num)
        after_N, _ = second_opinion(suspected_N, probability(groups_N))
        assert np.abs(after_N - suspected_N).mean() < 0.03


def test_a_reader_without_a_doubt_is_believed() -> None:
    suspected_N, wrong_N, _ = made(4, 0.0, 400)
    after_N, facts = second_opinion(suspected_N, np.where(wrong_N, 0.0, 1.0))
    assert "reason" not in facts
    assert ((after_N > 0.5) == wrong_N).all()


@pytest.mark.parametrize("num", [0, 49])
def test_few_rows_say_nothing(num: int) -> None:
    suspected_N, _, log_odds_N = made(2, 3.0, num)
    after_N, facts = second_opinion(suspected_N, probability(log_odds_N))
    assert after_N.tolist() == suspected_N.tolist()
    assert facts == {"num_read": num, "separation": 0.0, "reason": "fewer than 50 labels are in doubt"}


@pytest.mark.parametrize("flip", [-1.0, 0.0])
def test_a_reader_that_contradicts_or_is_constant_is_not_believed(flip: float) -> None:
    suspected_N, _, log_odds_N = made(2, 3.0)
    after_N, facts = second_opinion(suspected_N, probability(flip * log_odds_N))
    assert after_N.tolist() == suspected_N.tolist()
    assert facts["reason"] == "the second reader does not bear out what the first judge suspects"
