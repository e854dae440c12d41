"""Curves by epoch: what the axis says where there is one point only. Bars of many systems."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from raydr.evaluation.comparison import MeasureSummary
from raydr.pages import figure


def drawn_by(monkeypatch: pytest.MonkeyPatch) -> list[Axes]:
    """The axes that pictures are drawn on from now on."""
    drawn: list[Axes] = []

    def keep(draw: Callable[[Axes], None], title: str, width: float = 7.0) -> bytes:
        drawn.append(Figure().subplots())
        draw(drawn[-1])
        return b""

    monkeypatch.setattr(figure, "png", keep)
    return drawn


def test_no_two_systems_look_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine rounds of three arms had eight colours: the last had the first one's."""
    drawn, names = drawn_by(monkeypatch), [f"arm-{number}" for number in range(20)]
    bars = [MeasureSummary(system=name, measure="R@5", mean=0.5, low=0.4, high=0.6, num_queries=9) for name in names]
    figure.metric_bars(bars, "test", 0.95)
    assert len({(bar.get_facecolor(), bar.get_hatch()) for bar in drawn[0].patches}) == len(names)
    figure.curves({name: [(1.0, 0.5), (2.0, 0.6)] for name in names}, "dev", "epoch", "R@5")
    assert len({(line.get_color(), line.get_linestyle()) for line in drawn[1].lines}) == len(names)


def test_a_system_has_one_look_in_every_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its colour went by its place, so that the run's curves gave npc the colour that its bars gave bm25."""
    drawn = drawn_by(monkeypatch)
    summaries = [MeasureSummary(name, "R@5", 0.5, 0.4, 0.6, 9) for name in ("bm25", "untrained", "trained", "npc")]
    figure.metric_bars(summaries, "test", 0.95)
    points = [(1.0, 0.5), (2.0, 0.6)]
    figure.curves({"npc": points, "trained": points}, "dev", "epoch", "R@5", top=1.0)
    containers = [container for container in drawn[0].containers if isinstance(container, BarContainer)]
    bars = {container.get_label(): to_hex(container.patches[0].get_facecolor()) for container in containers}
    lines = {line.get_label(): to_hex(line.get_color()) for line in drawn[1].lines}
    assert lines == {name: bars[name] for name in ("npc", "trained")}
    # An axis of shares begins at nothing and ends at all.
    assert drawn[1].get_ylim() == (0.0, 1.0)
    assert drawn[0].get_ylim() == (0.0, 1.0)


@pytest.mark.parametrize("epochs", [[1], [1, 2], list(range(1, 7))])
def test_epochs_are_whole_numbers_however_few(epochs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = drawn_by(monkeypatch)
    figure.curves({"trained": [(epoch, 0.5) for epoch in epochs]}, "dev", "epoch", "RR@10", mark_best=True)
    low, high = drawn[0].get_xlim()
    shown = [tick for tick in drawn[0].get_xticks() if low <= tick <= high]
    assert shown
    assert set(shown) <= set(map(float, epochs))


def test_the_best_values_of_like_lines_do_not_lie_on_top_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = drawn_by(monkeypatch)
    lines = {"npc": [(1.0, 0.146), (2.0, 0.147)], "trained": [(1.0, 0.158), (2.0, 0.15)]}
    figure.curves(lines, "dev", "epoch", "RR@10", mark_best=True, top=1.0)
    assert drawn[0].get_legend_handles_labels()[1] == ["npc: 0.147", "trained: 0.158"]
    assert not drawn[0].texts


@pytest.mark.filterwarnings("error")
def test_bars_and_legend_of_many_systems_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = [MeasureSummary(f"a-variant-{number}", "NumRet", number, number, number, 9) for number in range(32)]
    # The layout warns if it has no place.
    assert figure.metric_bars(bars, "test", 0.95)
    drawn = drawn_by(monkeypatch)
    figure.metric_bars(bars, "test", 0.95)
    assert drawn[0].get_ylim()[1] >= 31
