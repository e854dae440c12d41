"""Pictures of several panels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from raydr.pages import figure as module


@pytest.mark.parametrize("num_labels", [2, 9])
def test_a_shared_legend_stays_within_the_picture(num_labels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []

    def keep(draw: Callable[[Figure], None], width: float, height: float) -> bytes:
        figure = Figure(figsize=(width, height), layout="constrained")
        canvas = FigureCanvasAgg(figure)
        draw(figure)
        canvas.draw()
        drawn.append(figure)
        return b""

    def panel(axes: Axes) -> None:
        for at in range(num_labels):
            axes.plot([0, 1], [at, at], label=f"correction-only {at}")

    monkeypatch.setattr(module, "_save", keep)
    module.grid([("left", panel), ("right", panel)], "title", columns=2)
    [figure] = drawn
    extent = figure.legends[0].get_window_extent()
    assert extent.x0 >= 0
    assert extent.x1 <= figure.bbox.width
    assert len(figure.legends[0].get_texts()) == num_labels
