"""Pictures of a search over settings, as PNG bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from raydr.pages.figure import COLORS, Draw, grid, legend, png
from raydr.tuning.distributions import Distribution, Range, as_text
from raydr.tuning.result import SearchResult, short_names
from raydr.tuning.trials import Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Characters of a value on an axis; longer ones are cut.
_LABEL = 18


def pictures(result: SearchResult) -> list[tuple[str, bytes, str]]:
    """All pictures of a search: file name, PNG and caption."""
    measure = f"dev {result.measure}"
    found = [
        ("curves.png", curves(result), f"{measure} by {result.unit}; the best trial and the default are drawn bold"),
        (
            "parallel.png",
            parallel_coordinates(result),
            f"settings and {measure} of all trials, one line each; dashed: stopped early, at the value it had then",
        ),
        (
            "settings.png",
            by_setting(result),
            f"{measure} against each setting; hollow: stopped early; the default is ringed",
        ),
    ]
    if result.importances.rows:
        caption = (
            f"share of the variance of {measure} after {result.unit} {result.importances.epoch} that each setting "
            f"explains, over {result.importances.num_trials} trials; grey: what chance would reach in 95 % of the cases"
        )
        found.append(("importance.png", importance_bars(result), caption))
    return found


def curves(result: SearchResult) -> bytes:
    """The score of every trial by epoch."""
    from matplotlib.ticker import MaxNLocator

    def draw(axes: Axes) -> None:
        for trial in result.trials:
            if trial.number not in (0, result.best.number):
                _curve(axes, trial, color="#BBBBBB", linewidth=0.9)
        if result.best.number:
            _curve(axes, result.default, color=COLORS[1], linewidth=2, label="default (trial 0)")
        _curve(axes, result.best, color=COLORS[0], linewidth=2, label=f"best (trial {result.best.number})")
        for at, rung in enumerate(result.rungs):
            label = "trials are compared" if at == 0 else None
            axes.axvline(rung, color="#999999", linestyle=":", linewidth=1, label=label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel(result.unit)
        axes.set_ylabel(f"dev {result.measure}")
        legend(axes)

    return png(draw, f"{result.name}: all trials by {result.unit}", width=8.0)


def _curve(axes: Axes, trial: Trial, **style: Any) -> None:
    epochs, scores = [row.epoch for row in trial.rows], [row.score for row in trial.rows]
    axes.plot(epochs, scores, marker="o", markersize=2.5, **style)


def parallel_coordinates(result: SearchResult) -> bytes:
    """One vertical axis a setting and one for the score, one line a trial, coloured by its score."""
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    trials = [trial for trial in result.trials if trial.score is not None]
    scores = np.array([trial.score for trial in trials], dtype=float)
    low, high = float(scores.min()), float(scores.max())
    spread = Normalize(low, high if high > low else low + 1e-9)
    places = list(range(len(result.parameters) + 1))

    def draw(axes: Axes) -> None:
        for trial, score in zip(trials, scores, strict=True):
            heights = [position(one, trial.values[key]) for key, one in result.parameters.items()]
            heights.append(float(spread(score)))
            is_best = trial.number == result.best.number
            axes.plot(
                places,
                heights,
                # The lightest yellow of the map is hard to see on white.
                color=colormaps["viridis"](0.88 * float(spread(score))),
                linestyle="-" if trial.status == "finished" else "--",
                linewidth=2.6 if is_best else 1.1,
                alpha=1.0 if is_best else 0.7,
                zorder=3 if is_best else 2,
            )
        for place, one in zip(places, result.parameters.values(), strict=False):
            _axis(axes, place, _ticks(one))
        _axis(axes, places[-1], [(0.0, f"{low:.3f}"), (1.0, f"{high:.3f}")])
        names = [*short_names(list(result.parameters)).values(), f"dev {result.measure}"]
        axes.set_xticks(places, [name.replace(".", ".\n") for name in names])
        axes.set_yticks([])
        axes.grid(visible=False)
        axes.spines["left"].set_visible(False)
        axes.set_xlim(-0.15, places[-1] + 0.45)
        axes.set_ylim(-0.06, 1.06)

    return png(draw, f"{result.name}: settings and score of {len(trials)} trials", width=max(7.0, 1.9 * len(places)))


def _axis(axes: Axes, place: int, ticks: Sequence[tuple[float, str]]) -> None:
    axes.axvline(place, color="#666666", linewidth=0.8, zorder=1)
    for height, label in ticks:
        box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.75}
        axes.text(place + 0.04, height, label, fontsize=7, va="center", color="#333333", zorder=4, bbox=box)


def by_setting(result: SearchResult) -> bytes:
    """The score against each setting, one panel each."""
    names = short_names(list(result.parameters))

    def panel(key: str, one: Distribution) -> Draw:
        def draw(axes: Axes) -> None:
            styles = {"finished": ("trained to the end", COLORS[0]), "stopped": ("stopped early", "none")}
            for status, (label, color) in styles.items():
                trials = [trial for trial in result.trials if trial.status == status and trial.score is not None]
                axes.scatter(
                    [position(one, trial.values[key]) for trial in trials],
                    [trial.score or 0.0 for trial in trials],
                    s=22, facecolors=color, edgecolors=COLORS[0], label=label,
                )  # fmt: skip
            if result.default.score is not None:
                axes.scatter(
                    [position(one, result.default.values[key])], [result.default.score], s=120, facecolors="none",
                    edgecolors=COLORS[1], linewidths=1.5, label="default",
                )  # fmt: skip
            ticks = _ticks(one)
            rotated = sum(len(label) for _, label in ticks) > 34
            axes.set_xticks([place for place, _ in ticks], [label for _, label in ticks])
            axes.tick_params(axis="x", labelsize=7, rotation=35 if rotated else 0)
            axes.set_xlim(-0.08, 1.08)
            axes.set_ylabel(f"dev {result.measure}", fontsize=8)

        return draw

    panels = [(names[key], panel(key, one)) for key, one in result.parameters.items()]
    return grid(panels, f"{result.name}: score against each setting", columns=3)


def importance_bars(result: SearchResult) -> bytes:
    """Importance of each setting beside the importance by chance."""
    rows = result.importances.rows[::-1]
    names = short_names([row.key for row in rows])

    def draw(axes: Axes) -> None:
        places = np.arange(len(rows))
        axes.barh(places, [row.by_chance for row in rows], height=0.8, color="#DDDDDD", label="by chance (95 %)")
        axes.barh(places, [row.share for row in rows], height=0.4, color=COLORS[0], label="this search")
        axes.set_yticks(places, list(names.values()))
        axes.set_xlim(0, 1)
        axes.set_xlabel("share of the variance explained (fANOVA)")
        axes.grid(axis="y", visible=False)
        legend(axes)

    return png(draw, f"{result.name}: which settings matter", width=8.0, height=1.4 + 0.4 * len(rows))


def position(one: Distribution, value: Any) -> float:
    """Where a value stands on its axis, from 0 to 1; a default beyond the ends, or that is no number, just outside."""
    if isinstance(one, Range):
        if not isinstance(value, int | float) or value < one.low:
            return -0.05
        if value > one.high:
            return 1.05
        scale = math.log if one.log else float
        return (scale(value) - scale(one.low)) / (scale(one.high) - scale(one.low))
    at = one.position(value)
    if at is None:
        return -0.05
    return at / (len(one.values) - 1) if len(one.values) > 1 else 0.5


def _ticks(one: Distribution) -> list[tuple[float, str]]:
    values = one.all_values()
    if values is None or (len(values) > 12 and isinstance(one, Range)):
        assert isinstance(one, Range)
        middle = math.sqrt(one.low * one.high) if one.log else (one.low + one.high) / 2
        values = [one.low, one.clean(middle), one.high]
    return [(position(one, value), _short(as_text(value))) for value in values]


def _short(text: str) -> str:
    return text if len(text) <= _LABEL else f"{text[: _LABEL - 1]}…"
