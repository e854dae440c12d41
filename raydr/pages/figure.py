"""One look for all pictures: a figure of one or more axes as PNG bytes."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from raydr.seeding import stable_hash64

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's colours, which people with any colour vision can tell apart; black for yellow, which white swallows.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#000000")
#: What tells bars, and lines, apart that have one colour because there are more of them than colours.
_HATCHES, _LINES = (None, "///", "...", "xxx"), ("-", "--", ":", "-.")
#: Systems that every run has, and their places among the colours.
_FIXED = {"trained": 0, "untrained": 1, "bm25": 6}

Draw = Callable[["Axes"], None]
#: Entries of a shared legend that fit under a panel.
_ENTRIES_A_PANEL = 2

_STYLE: Any = {
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3,
    "axes.axisbelow": True, "font.size": 11, "axes.titlesize": 12, "legend.frameon": False, "savefig.dpi": 130,
}  # fmt: skip


def looks_of(systems: Iterable[str]) -> dict[str, int]:
    """The look of each system: the same on every page, unless two systems of a page would look alike.

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
    """How bars look: no two of the first 32 alike.

    >>> look_of_bar(0)["color"] == look_of_bar(8)["color"], look_of_bar(0)["hatch"], look_of_bar(8)["hatch"]
    (True, None, '///')
    """
    return {"color": COLORS[at % len(COLORS)], "hatch": _HATCHES[at // len(COLORS) % len(_HATCHES)], "edgecolor": "w"}


def look_of_line(at: int) -> dict[str, Any]:
    """How lines look.

    >>> look_of_line(1)["linestyle"], look_of_line(9)["linestyle"]
    ('-', '--')
    """
    return {"color": COLORS[at % len(COLORS)], "linestyle": _LINES[at // len(COLORS) % len(_LINES)]}


def png(draw: Draw, title: str, width: float = 7.0, height: float = 4.0) -> bytes:
    """A picture of one axes.

    Args:
        draw: puts everything but the title on the axes.
        title: above them.
        width, height: inches.
    """

    def draw_one(figure: Figure) -> None:
        axes = figure.add_subplot()
        draw(axes)
        axes.set_title(title, loc="left")

    return _save(draw_one, width, height)


def grid(panels: Sequence[tuple[str, Draw]], title: str, columns: int = 2, shared_legend: bool = True) -> bytes:
    """A picture of several small axes.

    Args:
        panels: title and drawing of each, row by row.
        title: above all of them.
        columns: panels in a row, at most.
        shared_legend: one legend for all, from the panel that has the most entries.
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
    """Beside the axes, if there is anything to explain."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _save(draw: Callable[[Figure], None], width: float, height: float) -> bytes:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        buffer = io.BytesIO()
        # The software's version is left out of the file, so that equal data give equal bytes.
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
