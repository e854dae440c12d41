"""Pictures of results, as PNG bytes: metric bars with intervals, curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from raydr.evaluation.comparison import MeasureSummary
from raydr.pages.figure import legend, look_of_bar, look_of_line, looks_of, png
from raydr.pages.html import measure_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def metric_bars(bars: Sequence[MeasureSummary], title: str, confidence: float) -> bytes:
    """Grouped bars, one group a measure and one colour a system, with their confidence intervals."""
    groups = list(dict.fromkeys(bar.measure for bar in bars))
    systems = list(dict.fromkeys(bar.system for bar in bars))
    looks, width = looks_of(systems), 0.8 / len(systems)

    def draw(axes: Axes) -> None:
        for at, name in enumerate(systems):
            mine = [bar for bar in bars if bar.system == name]
            x = [groups.index(bar.measure) + (at - (len(systems) - 1) / 2) * width for bar in mine]
            means = np.array([bar.mean for bar in mine])
            errors = np.array([[bar.mean - bar.low for bar in mine], [bar.high - bar.mean for bar in mine]])
            axes.bar(x, means, width * 0.92, label=name, linewidth=0, **look_of_bar(looks[name]))
            axes.errorbar(x, means, np.maximum(errors, 0), fmt="none", ecolor="#333333", elinewidth=1, capsize=2.5)
        names = [measure_name(group) for group in groups]
        if len(groups) > 6:
            axes.set_xticks(range(len(groups)), names, rotation=30, ha="right")
        else:
            axes.set_xticks(range(len(groups)), [name.replace(" (", "\n(") for name in names])
        axes.set(ylim=(0, 1), ylabel=f"mean over queries, {confidence:.0%} interval", xlim=(-0.6, len(groups) - 0.4))
        axes.grid(axis="x", visible=False)
        legend(axes)

    return png(draw, title, width=min(9.5, max(7.0, 0.75 * len(groups) + 0.15 * len(bars) + 2)))


def curves(
    series: Mapping[str, Sequence[tuple[float, float]]],
    title: str,
    xlabel: str,
    ylabel: str,
    mark_best: bool = False,
    top: float | None = None,
    systems: Iterable[str] = (),
) -> bytes:
    """Lines through (x, y) points above 0, for example loss by step or a dev measure by epoch.

    Args:
        series: points by the name of the line.
        title: above the picture.
        xlabel: with its unit.
        ylabel: with its unit.
        mark_best: put a ring around the highest point of each line.
        top: where the axis ends; 1 for shares and measures; a little above the highest point if None.
        systems: all that the page shows, so that each has one look on it; those of the lines if there are none.
    """
    from matplotlib.ticker import MaxNLocator

    looks = looks_of([*systems, *series])

    def draw(axes: Axes) -> None:
        for name, points in series.items():
            look = look_of_line(looks[name])
            x, y = [point[0] for point in points], [point[1] for point in points]
            axes.plot(
                x, y, label=name, marker="o" if len(points) <= 30 else None, markersize=3.5, clip_on=False, **look
            )
            if mark_best and points:
                best = max(points, key=lambda point: point[1])
                axes.plot(*best, marker="o", markersize=11, fillstyle="none", color=look["color"], clip_on=False)
                axes.annotate(f"{best[1]:.3f}", best, textcoords="offset points", xytext=(8, 6), fontsize=10)
        if all(float(point[0]).is_integer() for points in series.values() for point in points):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set(xlabel=xlabel, ylabel=ylabel)
        values = [0.0, *(point[1] for points in series.values() for point in points)]
        axes.set_ylim(1.05 * min(values), top or 1.05 * max(values) or 1.0)
        legend(axes)

    return png(draw, title)
