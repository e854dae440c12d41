from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import norm

from raydr.errors import DataError
from raydr.noise.detectors.anchored import AnchoredDetector
from raydr.noise.detectors.base import Detector, MixtureFit, to_axis
from raydr.noise.detectors.calibrated import CalibratedDetector
from raydr.noise.detectors.gaussian import GaussianDetector

DETECTORS = [GaussianDetector(), CalibratedDetector(), CalibratedDetector(axis="log"), AnchoredDetector()]
each_detector = pytest.mark.parametrize("detector", DETECTORS, ids=["gaussian", "margin", "log", "anchored"])
#: Margins of random pairs: as noisy ones are made below.
RANDOM_R = np.random.default_rng(9).normal(4.0, 1.5, 2000)


def noisy_margins(share, num=2000, clean=(-6.0, 2.0), noisy=(4.0, 1.5), seed=0):
    """Gaussian margins with the truth."""
    rng = np.random.default_rng(seed)
    noisy_N = np.arange(num) >= num - round(share * num)
    margins_N = np.where(noisy_N, rng.normal(*noisy, num), rng.normal(*clean, num))
    return margins_N, noisy_N


def precision_recall(flagged_N, noisy_N):
    return (flagged_N & noisy_N).sum() / flagged_N.sum(), (flagged_N & noisy_N).sum() / noisy_N.sum()


def test_all_are_found_by_name():
    shipped = {"anchored": AnchoredDetector, "calibrated": CalibratedDetector, "gaussian": GaussianDetector}
    assert shipped.items() <= Detector.choices().items()


@each_detector
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_finds_mismatched_pairs(detector, share):
    margins_N, noisy_N = noisy_margins(share)
    detection = detector.detect(margins_N, RANDOM_R)
    precision, recall = precision_recall(~detection.clean, noisy_N)
    assert detection.reason == ""
    assert detection.fit.bimodal
    assert precision > 0.7
    assert recall > 0.95


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.8])
def test_calibrated_fit_is_precise_where_the_papers_flags_too_many(share):
    margins_N, noisy_N = noisy_margins(share)
    precision, recall = precision_recall(~CalibratedDetector().detect(margins_N).clean, noisy_N)
    assert precision > 0.95
    assert recall > 0.95
    if share <= 0.2:
        assert precision_recall(~GaussianDetector().detect(margins_N).clean, noisy_N)[0] < 0.9


@pytest.mark.parametrize("clean", [(-24.0, 5.0), (-36.0, 8.0)])
def test_calibrated_fit_knows_how_sure_the_surest_pairs_are(clean):
    """With dot products such margins are ordinary; cut off at a bound they would look like a group of their own."""
    alone_N, _ = noisy_margins(0.0, clean=clean)
    assert CalibratedDetector().detect(alone_N).clean.mean() > 0.99
    margins_N, noisy_N = noisy_margins(0.2, clean=clean)
    precision, recall = precision_recall(~CalibratedDetector().detect(margins_N).clean, noisy_N)
    assert precision > 0.95
    assert recall > 0.95


@each_detector
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_posterior_falls_with_the_margin(detector, share):
    margins_N, _ = noisy_margins(share)
    fit = detector.detect(margins_N, RANDOM_R).fit
    grid = np.concatenate([[0.0], np.geomspace(1e-15, 1e4, 4000)])
    log_posterior = fit.log_posterior(grid)
    assert np.isfinite(log_posterior).all()
    assert (log_posterior <= 0).all()
    assert (np.diff(log_posterior) <= 1e-12).all()


@given(
    weight=st.floats(0.05, 0.95),
    means=st.tuples(st.floats(-5, 5), st.floats(0.1, 8)),
    variances=st.tuples(st.floats(0.01, 9), st.floats(0.01, 9)),
    axis=st.sampled_from(["perplexity", "log", "margin"]),
)
def test_posterior_falls_for_any_mixture(weight, means, variances, axis):
    fit = MixtureFit(axis, (weight, 1 - weight), (means[0], means[0] + means[1]), variances, 0.0, 0.0)
    log_posterior = fit.log_posterior(np.concatenate([-np.geomspace(1e3, 1e-3, 200), np.geomspace(1e-3, 1e3, 200)]))
    assert np.isfinite(log_posterior).all()
    assert (np.diff(log_posterior) <= 1e-9).all()


def test_between_the_means_the_posterior_is_bayes_rule():
    fit = MixtureFit("perplexity", (0.3, 0.7), (1.0, 5.0), (0.25, 4.0), 0.0, 0.0)
    places = np.linspace(1.0, 5.0, 50)
    clean, noisy = 0.3 * norm(1.0, 0.5).pdf(places), 0.7 * norm(5.0, 2.0).pdf(places)
    np.testing.assert_allclose(np.exp(fit.log_posterior(np.log(np.expm1(places)))), clean / (clean + noisy))


def test_small_margins_never_count_as_mismatched():
    """A narrow clean component at 3 and a wide noisy one: without the hold, a perplexity near 0 would be noisy."""
    fit = MixtureFit("perplexity", (0.5, 0.5), (3.0, 6.0), (0.01, 9.0), 0.0, 0.0)
    raw = np.subtract(*fit.log_densities(np.array([0.0])))
    assert expit(raw)[0] < 0.01
    assert np.exp(fit.log_posterior(np.array([-50.0])))[0] > 0.9


@each_detector
def test_threshold_zero_flags_nothing_and_higher_thresholds_flag_more(detector):
    margins_N, _ = noisy_margins(0.5)
    flagged = [
        int((~detector.model_copy(update={"threshold": threshold}).detect(margins_N, RANDOM_R).clean).sum())
        for threshold in (0.0, 0.1, 0.5, 0.9)
    ]
    assert flagged[0] == 0 < flagged[1] <= flagged[2] <= flagged[3]


def test_threshold_zero_flags_nothing_where_the_posterior_underflows():
    rng = np.random.default_rng(0)
    margins_N = np.concatenate([rng.normal(1.0, 0.1, 500), rng.normal(300.0, 1.0, 500)])
    detection = GaussianDetector(threshold=0.0).detect(margins_N)
    assert detection.reason == ""
    assert (np.exp(detection.log_posterior) == 0).any()
    assert detection.clean.all()


@each_detector
def test_order_does_not_matter(detector):
    margins_N, _ = noisy_margins(0.3)
    order = np.random.default_rng(1).permutation(len(margins_N))
    first = detector.detect(margins_N, RANDOM_R)
    second = detector.detect(margins_N[order], RANDOM_R[order])
    assert first.fit == second.fit
    assert np.array_equal(first.clean[order], second.clean)


@each_detector
@pytest.mark.parametrize("value", [0.0, 2.5])
def test_equal_margins_keep_all(detector, value):
    detection = detector.detect(np.full(100, value), RANDOM_R)
    assert detection.clean.all()
    assert detection.fit is None
    assert "distinct" in detection.reason


def test_one_group_keeps_all():
    margins_N = np.random.default_rng(0).normal(-3.0, 2.0, 2000)
    detection = CalibratedDetector().detect(margins_N)
    assert detection.clean.all()
    assert (detection.log_posterior == 0).all()
    assert not detection.fit.bimodal
    assert "one component" in detection.reason


def test_paper_detector_keeps_all_of_one_gaussian():
    detection = GaussianDetector().detect(np.random.default_rng(0).normal(10.0, 1.0, 2000))
    assert detection.clean.all()
    assert "one component" in detection.reason


def test_collapsed_component_keeps_all():
    """A handful of outliers is no noise component."""
    margins_N = np.concatenate([np.random.default_rng(0).normal(5.0, 0.5, 2000), [900.0, 901.0, 902.0]])
    detection = GaussianDetector().detect(margins_N)
    assert detection.clean.all()
    assert "noisy component is almost empty" in detection.reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"bic_mixture": 100.0}, "one component"),
        ({"weights": (0.02, 0.98)}, "clean component is almost empty"),
        ({"weights": (0.999, 0.001)}, "noisy component is almost empty"),
        ({"means": (1.0, 1.1)}, "too close"),
    ],
)
def test_reasons(change, reason):
    good = MixtureFit("perplexity", (0.5, 0.5), (1.0, 5.0), (1.0, 1.0), bic_single=100.0, bic_mixture=50.0)
    got = GaussianDetector().why_not_bimodal(replace(good, **change))
    assert (reason in got) if reason else (got == "")


@settings(max_examples=50)
@given(st.lists(st.floats(-600, 600), min_size=2, max_size=30, unique=True))
def test_axes_rise_and_are_finite(values):
    values_N = np.sort(np.array(values))
    for axis in ("perplexity", "log", "margin"):
        axis_N = to_axis(values_N, axis)
        assert np.isfinite(axis_N).all()
        assert (np.diff(axis_N) >= 0).all()
    np.testing.assert_allclose(to_axis(values_N, "perplexity"), np.log1p(np.exp(values_N)), rtol=1e-12)
    sure_N = values_N[values_N > -30.0]
    np.testing.assert_allclose(to_axis(sure_N, "log"), np.log(np.log1p(np.exp(sure_N))), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bad", [[1.0, np.nan], [1.0, -np.inf], [[1.0]]])
def test_bad_margins_are_refused(bad):
    with pytest.raises(DataError, match="finite"):
        GaussianDetector().detect(np.array(bad))


def skewed_margins(share, num=4000, shift=0.0, seed=0):
    """Clean margins with a long tail to the sure side, as a retriever makes them; mismatched ones like random pairs."""
    rng = np.random.default_rng(seed)
    noisy_N = np.arange(num) >= num - round(share * num)
    margins_N = np.where(noisy_N, rng.normal(4.0 - shift, 1.0, num), 3.5 - rng.gamma(4.0, 0.8, num))
    return margins_N, noisy_N


SKEWED_R = np.random.default_rng(8).normal(4.0, 1.0, 4000)


def test_anchored_fit_leaves_clean_pairs_alone_where_the_calibrated_one_cuts_them_in_two():
    """What it was made for: on code search, without any noise, the calibrated fit flags three quarters."""
    margins_N, _ = skewed_margins(0.0)
    assert CalibratedDetector(min_separation=1).detect(margins_N).clean.mean() < 0.5
    assert AnchoredDetector().detect(margins_N, SKEWED_R).clean.mean() > 0.99


@pytest.mark.parametrize("shift", [0.0, 0.8])
@pytest.mark.parametrize("share", [0.5, 0.8])
def test_anchored_fit_allows_for_pairs_that_training_has_seen(share, shift):
    margins_N, noisy_N = skewed_margins(share, shift=shift)
    precision, recall = precision_recall(~AnchoredDetector().detect(margins_N, SKEWED_R).clean, noisy_N)
    assert precision > 0.85
    assert recall > 0.85


def test_anchored_component_stays_near_the_random_pairs():
    random_R = np.random.default_rng(1).normal(9.0, 1.0, 2000)
    margins_N, _ = noisy_margins(0.5)
    for max_shift in (0.0, 1.0, 2.0):
        fit = AnchoredDetector(max_shift=max_shift).detect(margins_N, random_R).fit
        lowest = random_R.mean() - max_shift * np.sqrt(fit.variances[1])
        assert lowest - 1e-9 <= fit.means[1] <= random_R.mean() + 1e-9
        assert fit.variances[1] == pytest.approx(random_R.var(), rel=0.01)


def test_anchored_fit_without_random_pairs():
    margins_N, _ = noisy_margins(0.5)
    with pytest.raises(DataError, match="detector anchored needs the margins of random pairs"):
        AnchoredDetector().detect(margins_N)
    for too_few_N in (np.full(2000, np.nan), np.ones(2000)):
        detection = AnchoredDetector().detect(margins_N, too_few_N)
        assert detection.clean.all()
        assert detection.reason == "fewer than 10 distinct margins of random pairs"
