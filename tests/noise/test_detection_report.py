import numpy as np
import pytest

from raydr.errors import DataError
from raydr.noise.detection_report import report_detection


def test_figures_by_hand():
    noisy = [1, 1, 1, 0, 0, 0, 0, 0]
    flagged = [1, 1, 0, 1, 0, 0, 0, 0]
    suspicion = [9, 8, 3, 7, 2, 1, 0, 4]
    report = report_detection(noisy, flagged, suspicion)
    assert (report.count, report.num_noisy, report.num_flagged) == (8, 3, 3)
    assert (report.precision, report.recall, report.f1) == pytest.approx((2 / 3, 2 / 3, 2 / 3))
    better = sum(a > b for a in (9, 8, 3) for b in (7, 2, 1, 0, 4))
    assert report.auroc == pytest.approx(better / 15)
    assert report.average_precision == pytest.approx((1 / 1 + 2 / 2 + 3 / 5) / 3)
    assert report.bins == ()
    assert report.calibration_error is None


def test_undefined_figures_are_none():
    clean = report_detection([0, 0], [0, 0], [1.0, 2.0])
    assert (clean.precision, clean.recall, clean.f1, clean.auroc, clean.average_precision) == (None,) * 5
    missed = report_detection([1, 0], [0, 0], [1.0, 2.0])
    assert (missed.precision, missed.recall, missed.f1, missed.auroc) == (None, 0.0, 0.0, 0.0)


def test_reliability_bins():
    probability = [0.05, 0.0, 0.5, 0.59, 1.0]
    report = report_detection([0, 1, 1, 0, 1], [0, 0, 1, 1, 1], probability, probability, num_bins=10)
    assert [part.count for part in report.bins] == [2, 0, 0, 0, 0, 2, 0, 0, 0, 1]
    assert (report.bins[5].mean_probability, report.bins[5].noise_share) == pytest.approx((0.545, 0.5))
    assert (report.bins[1].mean_probability, report.bins[1].noise_share) == (None, None)
    assert report.calibration_error == pytest.approx((2 * abs(0.025 - 0.5) + 2 * 0.045 + 0.0) / 5)


def test_calibrated_probabilities_have_a_small_error():
    rng = np.random.default_rng(0)
    probability = rng.random(20_000)
    noisy = rng.random(20_000) < probability
    good = report_detection(noisy, probability > 0.5, probability, probability)
    bad = report_detection(noisy, probability > 0.5, probability, probability**4)
    assert good.calibration_error < 0.02 < 0.2 < bad.calibration_error


def test_bad_input_is_refused():
    with pytest.raises(DataError, match="the same shape"):
        report_detection([1, 0], [1], [0.5, 0.5])
    with pytest.raises(DataError, match=r"\[0, 1\]"):
        report_detection([1, 0], [1, 0], [0.5, 0.5], [0.5, 1.5])
