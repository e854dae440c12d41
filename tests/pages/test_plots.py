"""Curves by epoch: what the axis says where there is one point only."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raydr.pages import plots


@pytest.mark.parametrize("epochs", [[1], [1, 2], list(range(1, 7))])
def test_epochs_are_whole_numbers_however_few(epochs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Axes] = []

    def keep(draw: Callable[[Axes], None], title: str) -> bytes:
        drawn.append(Figure().subplots())
        draw(drawn[0])
        return b""

    monkeypatch.setattr(plots, "png", keep)
    plots.curves({"trained": [(epoch, 0.5) for epoch in epochs]}, "dev", "epoch", "RR@10", mark_best=True)
    low, high = drawn[0].get_xlim()
    shown = [tick for tick in drawn[0].get_xticks() if low <= tick <= high]
    assert shown
    assert set(shown) <= set(map(float, epochs))
