"""Pictures of detections: where flagging begins, and that all of them can be drawn."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raydr.noise.detectors.calibrated import CalibratedDetector
from raydr.pages.audit import DetectedPairs, margin_histogram, parse_fit


@pytest.fixture(scope="module")
def pairs() -> DetectedPairs:
    rng = np.random.default_rng(0)
    margins = np.concatenate([rng.normal(-5, 1.5, 300), rng.normal(4, 1.5, 100)])
    detection = CalibratedDetector().detect(margins)
    return DetectedPairs(margins, detection.clean, detection.fit, np.arange(400) >= 300)


def test_the_boundary_lies_on_the_axis_of_the_fit_between_the_means(pairs: DetectedPairs) -> None:
    assert pairs.fit is not None
    assert pairs.axis == "margin"
    assert pairs.fit.means[0] < pairs.boundary < pairs.fit.means[1]
    assert parse_fit(asdict(pairs.fit) | {"means": list(pairs.fit.means)}) == pairs.fit


def drawn(pairs: DetectedPairs) -> Axes:
    axes = Figure().add_subplot()
    pairs.draw(axes)
    return axes


def test_bars_and_densities_share_one_area_and_the_threshold_is_named(pairs: DetectedPairs) -> None:
    axes = drawn(pairs)
    clean, mismatched, threshold = axes.lines
    assert [clean.get_label(), mismatched.get_label()] == ["clean", "mismatched"]
    assert threshold.get_label() == f"threshold {pairs.boundary:.3g}"
    total = sum(np.trapezoid(line.get_ydata(), line.get_xdata()) for line in (clean, mismatched))
    assert total == pytest.approx(1.0, abs=0.02)
    assert sum(bar.get_width() * bar.get_height() for bar in axes.patches) == pytest.approx(1.0)


def test_a_detection_without_a_mixture_is_drawn_without_densities_and_threshold() -> None:
    kept = DetectedPairs(np.arange(5.0), np.ones(5, dtype=bool), None)
    assert (kept.boundary, kept.axis, len(drawn(kept).lines)) == (None, "margin", 0)


def test_pictures_are_drawn(pairs: DetectedPairs) -> None:
    kept = DetectedPairs(np.arange(50.0), np.ones(50, dtype=bool), None)
    for detection in (pairs, kept):
        assert margin_histogram(detection, "t").startswith(b"\x89PNG\r\n\x1a\n")
