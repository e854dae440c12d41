"""Figures as PNG bytes in a common style: bars with intervals, curves, grids of panels."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from raydr.console import percent
from raydr.evaluation.comparison import MeasureSummary
from raydr.seeding import stable_hash64

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's colours, which people with any colour vision can distinguish. Violet replaces yellow, which is faint
#: on white; grey replaces black.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#8661C1")
#: Colour of texts and axes on a transparent ground: the contrast is 4.3 on white and on a browser's dark page.
INK = "#797979"
#: Styles that distinguish bars, and lines, of the same colour if there are more of them than colours.
_HATCHES, _LINES = (None, "///", "...", "xxx"), ("-", "--", ":", "-.")
#: Systems that every run has, with the indices of their colours.
_FIXED = {"trained": 0, "untrained": 1, "bm25": 6}

Draw = Callable[["Axes"], None]
#: Entries of a shared legend that fit under a panel.
_ENTRIES_A_PANEL = 2
#: Height of an entry of a legend beside the axes.
_ENTRY_INCHES = 0.24

_STYLE: Any = {
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "grid.color": INK, "axes.axisbelow": True, "font.size": 11, "axes.titlesize": 12, "legend.frameon": False,
    "savefig.dpi": 130, "savefig.transparent": True,
}  # fmt: skip


def looks_of(systems: Iterable[str]) -> dict[str, int]:
    """Return the number of each system's style: the same on every page, unless two systems would then share it.

    >>> looks_of(["bm25", "npc", "trained"])["npc"] == looks_of(["npc", "untrained"])["npc"]
    True
    """
    names = list(dict.fromkeys(systems))
    plain = [at for at in range(len(COLORS)) if at not in _FIXED.values()]
    chosen = {name: _FIXED[name] for name in names if name in _FIXED}
    for name in names:
        start = stable_hash64("look", name) % len(plain)
        order = [*plain[start:], *plain[:start], *range(len(COLORS), len(COLORS) * len(_LINES))]
        chosen.setdefault(name, next((at for at in order if at not in chosen.values()), order[0]))
    return {name: chosen[name] for name in names}


def look_of_bar(at: int) -> dict[str, Any]:
    """Return a style of bars; the first 32 differ.

    >>> look_of_bar(0)["color"] == look_of_bar(8)["color"], look_of_bar(0)["hatch"], look_of_bar(8)["hatch"]
    (True, None, '///')
    """
    return {"color": COLORS[at % len(COLORS)], "hatch": _HATCHES[at // len(COLORS) % len(_HATCHES)], "edgecolor": "w"}


def look_of_line(at: int) -> dict[str, Any]:
    """Return a style of lines; the first 32 differ.

    >>> look_of_line(1)["linestyle"], look_of_line(9)["linestyle"]
    ('-', '--')
    """
    return {"color": COLORS[at % len(COLORS)], "linestyle": _LINES[at // len(COLORS) % len(_LINES)]}


def png(draw: Draw, title: str, width: float = 7.0, height: float = 4.0) -> bytes:
    """Draw a PNG with a single axes.

    Args:
        draw: function that draws everything except the title.
        title: above the axes.
        width, height: in inches.
    """

    def draw_panel(figure: Figure) -> None:
        axes = figure.add_subplot()
        draw(axes)
        axes.set_title(title, loc="left")

    return _save(draw_panel, width, height)


def grid(panels: Sequence[tuple[str, Draw]], title: str, columns: int = 2, shared_legend: bool = True) -> bytes:
    """Draw a PNG with several small axes.

    Args:
        panels: title and drawing of each panel, row by row.
        title: above all panels.
        columns: maximal number of panels in a row.
        shared_legend: add a common legend, from the panel that has the most entries.
    """
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)

    def draw_all(figure: Figure) -> None:
        handles: list[Any] = []
        labels: list[str] = []
        for at, (name, draw) in enumerate(panels):
            axes = figure.add_subplot(rows, columns, at + 1)
            draw(axes)
            axes.set_title(name, loc="left", fontsize=11)
            legend = axes.get_legend_handles_labels()
            if len(legend[1]) > len(labels):
                handles, labels = legend
        if shared_legend and labels:
            ncols = min(len(labels), _ENTRIES_A_PANEL * columns)
            figure.legend(handles, labels, loc="outside lower center", ncols=ncols)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)

    return _save(draw_all, max(6.0, 4.5 * columns), 0.8 + 2.8 * rows)


def legend(axes: Axes) -> None:
    """Add a legend beside the axes, if they have labels; many labels make the figure higher."""
    if labels := axes.get_legend_handles_labels()[1]:
        figure: Any = axes.figure
        figure.set_figheight(max(figure.get_figheight(), _ENTRY_INCHES * len(labels) + 1.0))
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def metric_bars(bars: Sequence[MeasureSummary], title: str, confidence: float) -> bytes:
    """Draw bars with confidence intervals, in a group for each measure and a colour for each system."""
    groups = list(dict.fromkeys(bar.measure for bar in bars))
    systems = list(dict.fromkeys(bar.system for bar in bars))
    looks, width = looks_of(systems), 0.8 / len(systems)

    def draw(axes: Axes) -> None:
        for at, name in enumerate(systems):
            own = [bar for bar in bars if bar.system == name]
            x = [groups.index(bar.measure) + (at - (len(systems) - 1) / 2) * width for bar in own]
            means = np.array([bar.mean for bar in own])
            errors = np.array([[bar.mean - bar.low for bar in own], [bar.high - bar.mean for bar in own]])
            axes.bar(x, means, width * 0.92, label=name, linewidth=0, **look_of_bar(looks[name]))
            # Black on white is visible on bars of any colour, and on light and dark pages.
            for color, thick in (("white", 2.6), ("black", 1.0)):
                line: Any = {"ecolor": color, "elinewidth": thick, "capthick": thick}
                axes.errorbar(x, means, np.maximum(errors, 0), fmt="none", capsize=2.5, **line)
        if len(groups) > 6:
            axes.set_xticks(range(len(groups)), groups, rotation=30, ha="right")
        else:
            axes.set_xticks(range(len(groups)), [name.replace(" (", "\n(") for name in groups])
        axes.set(
            ylim=(0, max(1.0, *(bar.mean for bar in bars))),
            ylabel=f"mean over queries, {percent(confidence)} interval",
            xlim=(-0.6, len(groups) - 0.4),
        )
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
    """Draw lines through (x, y) points above 0, for example loss by step or a dev measure by epoch.

    Args:
        series: points by the name of the line.
        title: above the picture.
        xlabel: with its unit.
        ylabel: with its unit.
        mark_best: draw a ring around the highest point of each line, and add its value to the legend.
        top: end of the axis; 1 for shares and measures; a little above the highest point if None.
        systems: all systems of the page, so that each keeps its style on it; by default those of the lines.
    """
    from matplotlib.ticker import MaxNLocator

    looks = looks_of([*systems, *series])

    values = [0.0, *(point[1] for points in series.values() for point in points)]
    end = top or 1.05 * max(values) or 1.0

    def draw(axes: Axes) -> None:
        for name, points in series.items():
            look = look_of_line(looks[name])
            x, y = [point[0] for point in points], [point[1] for point in points]
            label = name
            if mark_best and points:
                best = max(points, key=lambda point: point[1])
                axes.plot(*best, marker="o", markersize=11, fillstyle="none", color=look["color"], clip_on=False)
                # In the legend, since numbers beside the points of similar lines would overlap.
                label = f"{name}: {best[1]:.3f}"
            marker = "o" if len(points) <= 30 else None
            axes.plot(x, y, label=label, marker=marker, markersize=3.5, clip_on=False, **look)
        if all(float(point[0]).is_integer() for points in series.values() for point in points):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.set_ylim(1.05 * min(values), end)
        legend(axes)

    return png(draw, title)


def _save(draw: Callable[[Figure], None], width: float, height: float) -> bytes:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        buffer = io.BytesIO()
        # Without the software's version, so that equal data give equal bytes.
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
