"""Pictures of several panels."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO

import numpy as np
import pytest
from matplotlib import image
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from raydr.pages import figure as module
from raydr.pages.figure import COLORS, INK, curves


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


def test_pictures_are_readable_on_light_and_dark_pages() -> None:
    """The ground is transparent; texts and lines stand out from white and from the dark ground of browsers."""
    pixels_HW4 = image.imread(BytesIO(curves({"npc": [(0, 0.1), (1, 0.3)]}, "loss", "epoch", "loss")))
    assert pixels_HW4[0, 0, 3] == 0.0
    assert np.median(pixels_HW4[..., 3]) == 0.0
    for color, least in [(INK, 4.0), *((color, 2.0) for color in COLORS)]:
        assert min(_contrast(color, ground) for ground in ("#ffffff", "#121212")) >= least, color


def _contrast(color: str, ground: str) -> float:
    """Return the contrast ratio of WCAG 2."""
    lights = []
    for text in (color, ground):
        shares_3 = np.array([int(text[at : at + 2], 16) for at in (1, 3, 5)]) / 255
        linear_3 = np.where(shares_3 <= 0.04045, shares_3 / 12.92, ((shares_3 + 0.055) / 1.055) ** 2.4)
        lights.append(float(linear_3 @ [0.2126, 0.7152, 0.0722]) + 0.05)
    return max(lights) / min(lights)
