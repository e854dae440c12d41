"""Pictures of results, as PNG bytes: metric bars with intervals, curves, histograms, score distributions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raydr.pages.figure import COLORS, legend, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Bar:
    """One mean with its interval, in [0, 1]."""

    group: str
    series: str
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Gaussian:
    """One component of a mixture: its share of the values, mean and standard deviation."""

    weight: float
    mean: float
    std: float

    def density(self, at: NDArray[np.float64]) -> NDArray[np.float64]:
        """
        >>> round(float(Gaussian(1.0, 0.0, 1.0).density(np.array([0.0]))[0]), 4)
        0.3989
        """
        z = (at - self.mean) / self.std
        return np.asarray(self.weight * np.exp(-0.5 * z * z) / (self.std * math.sqrt(2 * math.pi)))


def metric_bars(bars: Sequence[Bar], title: str, confidence: float) -> bytes:
    """Grouped bars, one group a measure and one colour a system, with their confidence intervals."""
    groups = list(dict.fromkeys(bar.group for bar in bars))
    series = list(dict.fromkeys(bar.series for bar in bars))
    width = 0.8 / len(series)

    def draw(axes: Axes) -> None:
        for at, name in enumerate(series):
            mine = [bar for bar in bars if bar.series == name]
            x = [groups.index(bar.group) + (at - (len(series) - 1) / 2) * width for bar in mine]
            means = np.array([bar.mean for bar in mine])
            errors = np.array([[bar.mean - bar.low for bar in mine], [bar.high - bar.mean for bar in mine]])
            axes.bar(x, means, width * 0.92, color=COLORS[at % len(COLORS)], label=name)
            axes.errorbar(x, means, np.maximum(errors, 0), fmt="none", ecolor="#333333", elinewidth=1, capsize=2.5)
        axes.set_xticks(range(len(groups)), [_wrap(group) for group in groups])
        axes.set_ylim(0, 1)
        axes.set_ylabel(f"mean over queries, {confidence:.0%} interval")
        axes.set_xlim(-0.6, len(groups) - 0.4)
        axes.grid(axis="x", visible=False)
        legend(axes)

    return png(draw, title, width=min(13.0, max(6.0, 0.75 * len(groups) + 0.15 * len(bars) + 2)))


def curves(
    series: Mapping[str, Sequence[tuple[float, float]]], title: str, xlabel: str, ylabel: str, mark_best: bool = False
) -> bytes:
    """Lines through (x, y) points, for example loss by step or a dev measure by epoch.

    Args:
        series: points by the name of the line.
        title: above the picture.
        xlabel: with its unit.
        ylabel: with its unit.
        mark_best: put a ring around the highest point of each line.
    """
    from matplotlib.ticker import MaxNLocator

    def draw(axes: Axes) -> None:
        for at, (name, points) in enumerate(series.items()):
            color = COLORS[at % len(COLORS)]
            x, y = [point[0] for point in points], [point[1] for point in points]
            axes.plot(x, y, color=color, label=name, marker="o" if len(points) <= 30 else None, markersize=3.5)
            if mark_best and points:
                best = max(points, key=lambda point: point[1])
                axes.plot(*best, marker="o", markersize=11, fillstyle="none", color=color)
                axes.annotate(f"{best[1]:.3f}", best, textcoords="offset points", xytext=(8, 6), fontsize=8)
        if all(float(point[0]).is_integer() for points in series.values() for point in points):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        legend(axes)

    return png(draw, title)


def mixture_histogram(
    values: ArrayLike,
    components: Sequence[tuple[str, Gaussian]],
    threshold: float | None,
    title: str,
    xlabel: str,
    truth: Sequence[bool] | None = None,
) -> bytes:
    """Histogram of noise scores with the mixture's components and the threshold.

    Args:
        values: one score a training pair.
        components: name and density of each component; empty if no mixture was fitted.
        threshold: where pairs are flagged, None if nothing is.
        title: above the picture.
        xlabel: what the score is.
        truth: whether each pair really is noise, where that is known; the bars are then split.
    """

    def draw(axes: Axes) -> None:
        draw_mixture(axes, values, components, threshold, truth)
        axes.set_xlabel(xlabel)
        axes.set_ylabel("density")
        legend(axes)

    return png(draw, title)


def draw_mixture(
    axes: Axes,
    values: ArrayLike,
    components: Sequence[tuple[str, Gaussian]],
    threshold: float | None,
    truth: Sequence[bool] | None = None,
) -> None:
    """The inside of :func:`mixture_histogram`."""
    scores = np.asarray(values, dtype=np.float64)
    edges = np.histogram_bin_edges(scores, bins=60)
    if truth is None:
        axes.hist(scores, bins=list(edges), density=True, color="#BBBBBB", label="pairs")
    else:
        noisy = np.asarray(truth, dtype=bool)
        # The two histograms have one area together, so that the components' densities fit on top.
        weights = [np.full(int(part.sum()), 1 / (len(scores) * (edges[1] - edges[0]))) for part in (~noisy, noisy)]
        axes.hist(
            [scores[~noisy], scores[noisy]], bins=list(edges), weights=weights, stacked=True,
            color=["#BBBBBB", "#E8A0A0"], label=["right pairs", "noisy pairs"],
        )  # fmt: skip
    x = np.linspace(edges[0], edges[-1], 400)
    for at, (name, component) in enumerate(components):
        axes.plot(x, component.density(x), color=COLORS[at % len(COLORS)], label=name)
    if threshold is not None:
        axes.axvline(threshold, color="#333333", linestyle="--", linewidth=1, label=f"threshold {threshold:.3g}")


def distributions(series: Mapping[str, ArrayLike], title: str, xlabel: str, num_bins: int = 50) -> bytes:
    """Outlined histograms of several sets of values on one scale, each with area 1.

    For example scores of positives, hard negatives and false negatives.
    """
    arrays = {name: np.asarray(values, dtype=np.float64) for name, values in series.items()}
    filled = [values for values in arrays.values() if len(values)]

    def draw(axes: Axes) -> None:
        edges = np.histogram_bin_edges(np.concatenate(filled), bins=num_bins) if filled else np.linspace(0, 1, 2)
        for at, (name, values) in enumerate(arrays.items()):
            named = f"{name} (n = {len(values):,})"
            color = COLORS[at % len(COLORS)]
            if len(values):
                axes.hist(
                    values, bins=list(edges), density=True, histtype="step", linewidth=1.6, color=color, label=named
                )
            else:
                axes.plot([], [], color=color, label=named)
        axes.set_xlabel(xlabel)
        axes.set_ylabel("density")
        legend(axes)

    return png(draw, title)


def _wrap(text: str) -> str:
    return text.replace(" (", "\n(")
