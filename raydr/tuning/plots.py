"""Pictures of a search over settings, as PNG bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from raydr.pages.figure import COLORS, Draw, grid, legend, png
from raydr.tuning.parameters import Parameter, as_text, is_number
from raydr.tuning.result import StudyResult, short_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Characters of a value on an axis; longer ones are cut.
_LABEL = 18


def pictures(result: StudyResult) -> list[tuple[str, bytes, str]]:
    """All pictures of a search: file name, PNG and caption."""
    measure, unit, weights = result.measure, result.unit, result.importances
    early = "stopped early, at the value it had then"
    found = [
        ("curves.png", curves(result), f"{measure} by {unit}; the best trial and the default are drawn bold"),
        ("parallel.png", parallel(result), f"settings and {measure} of all trials, one line each; dashed: {early}"),
        ("settings.png", by_setting(result), f"{measure} against each setting; hollow: {early}; the default is ringed"),
    ]
    if weights.rows:
        caption = f"share of the variance of {measure} after {unit} {weights.epoch} that each setting explains, over "
        caption += f"{weights.num_trials} trials; grey: what chance would reach in 95 % of the cases"
        found.append(("importance.png", importance_bars(result), caption))
    return found


def curves(result: StudyResult) -> bytes:
    """The score of every trial by epoch."""
    from matplotlib.ticker import MaxNLocator

    bold = {0: (COLORS[1], "default (trial 0)"), result.best.number: (COLORS[0], f"best (trial {result.best.number})")}

    def draw(axes: Axes) -> None:
        for trial in sorted(result.trials, key=lambda one: one.number in bold):
            color, label = bold.get(trial.number, ("#BBBBBB", None))
            epochs, scores = [row.epoch for row in trial.rows], [row.score for row in trial.rows]
            axes.plot(epochs, scores, "o-", markersize=2.5, color=color, label=label, linewidth=2.0 if label else 0.9)
        for at, rung in enumerate(result.plan.schedule.rungs):
            label = "trials are compared" if at == 0 else None
            axes.axvline(rung, color="#999999", linestyle=":", linewidth=1, label=label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set(xlabel=result.unit, ylabel=result.measure)
        legend(axes)

    return png(draw, f"{result.name}: all trials by {result.unit}", width=8.0)


def parallel(result: StudyResult) -> bytes:
    """One vertical axis a setting and one for the score, one line a trial, coloured by its score."""
    from matplotlib import colormaps

    parameters = result.plan.space.parameters
    trials = [trial for trial in result.trials if trial.score is not None]
    scores = np.array([trial.score for trial in trials], dtype=float)
    low, high = float(scores.min()), float(scores.max())
    heights = (scores - low) / max(high - low, 1e-9)
    places = list(range(len(parameters) + 1))

    def draw(axes: Axes) -> None:
        for trial, height in zip(trials, heights.tolist(), strict=True):
            style: Any = {"linewidth": 1.1, "zorder": 2, "alpha": 0.7}
            if trial.number == result.best.number:
                style = {"linewidth": 2.6, "zorder": 3}
            axes.plot(
                places,
                [*(position(one, trial.values[key]) for key, one in parameters.items()), height],
                "-" if trial.status == "finished" else "--",
                # The lightest yellow of the map is hard to see on white.
                color=colormaps["viridis"](0.88 * height),
                **style,
            )
        box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.75}
        ends = [(0.0, f"{low:.3f}"), (1.0, f"{high:.3f}")]
        for place, marks in zip(places, [*map(ticks, parameters.values()), ends], strict=True):
            axes.axvline(place, color="#666666", linewidth=0.8, zorder=1)
            for at, label in marks:
                axes.text(place + 0.04, at, label, fontsize=7, va="center", color="#333333", zorder=4, bbox=box)
        names = [*short_names(list(parameters)).values(), result.measure]
        axes.set_xticks(places, [name.replace(".", ".\n") for name in names])
        axes.grid(visible=False)
        axes.spines["left"].set_visible(False)
        axes.set(yticks=[], xlim=(-0.15, places[-1] + 0.45), ylim=(-0.06, 1.06))

    return png(draw, f"{result.name}: settings and score of {len(trials)} trials", width=max(7.0, 1.9 * len(places)))


def by_setting(result: StudyResult) -> bytes:
    """The score against each setting, one panel each."""
    parameters, default = result.plan.space.parameters, result.default
    styles = {"finished": ("trained to the end", COLORS[0]), "stopped": ("stopped early", "none")}

    def panel(key: str, one: Parameter) -> Draw:
        def draw(axes: Axes) -> None:
            for status, (label, color) in styles.items():
                trials = [trial for trial in result.trials if trial.status == status and trial.score is not None]
                at, scores = [position(one, trial.values[key]) for trial in trials], [trial.score for trial in trials]
                axes.scatter(at, np.array(scores), s=22, facecolors=color, edgecolors=COLORS[0], label=label)
            if default.score is not None:
                ring: Any = {"facecolors": "none", "edgecolors": COLORS[1], "linewidths": 1.5, "label": "default"}
                axes.scatter([position(one, default.values[key])], [default.score], s=120, **ring)
            places, labels = zip(*ticks(one), strict=True)
            axes.set_xticks(places, labels)
            axes.tick_params(axis="x", labelsize=7, rotation=35 if sum(map(len, labels)) > 34 else 0)
            axes.set_xlim(-0.08, 1.08)
            axes.set_ylabel(result.measure, fontsize=8)

        return draw

    panels = [(name, panel(key, parameters[key])) for key, name in short_names(list(parameters)).items()]
    return grid(panels, f"{result.name}: score against each setting", columns=3)


def importance_bars(result: StudyResult) -> bytes:
    """Importance of each setting beside the importance by chance."""
    rows = result.importances.rows[::-1]

    def draw(axes: Axes) -> None:
        places = np.arange(len(rows))
        axes.barh(places, [row.by_chance for row in rows], height=0.8, color="#DDDDDD", label="by chance (95 %)")
        axes.barh(places, [row.share for row in rows], height=0.4, color=COLORS[0], label="this search")
        axes.set_yticks(places, list(short_names([row.key for row in rows]).values()))
        axes.set(xlim=(0, 1), xlabel="share of the variance explained (fANOVA)")
        axes.grid(axis="y", visible=False)
        legend(axes)

    return png(draw, f"{result.name}: which settings matter", width=8.0, height=1.4 + 0.4 * len(rows))


def position(one: Parameter, value: Any) -> float:
    """Where a value stands on its axis, from 0 to 1; a default beyond the ends, or that is no number, just outside."""
    if one.values is not None:
        at = one.encode(value)
        return -0.05 if at is None else at / (len(one.values) - 1) if len(one.values) > 1 else 0.5
    low, high = one.ends
    if not is_number(value) or value < low:
        return -0.05
    scale = math.log if one.log else float
    return 1.05 if value > high else (scale(value) - scale(low)) / (scale(high) - scale(low))


def ticks(one: Parameter) -> Sequence[tuple[float, str]]:
    """Places on a parameter's axis with their labels."""
    values = list(one.values or [])
    if one.values is None or (isinstance(one.values, range) and len(values) > 12):
        low, high = one.ends
        middle = math.sqrt(low * high) if one.log else (low + high) / 2
        values = [low, one.decode(middle) if one.values is None else round(middle), high]
    labels = [(value, as_text(value)) for value in values]
    return [(position(one, value), text if len(text) <= _LABEL else f"{text[: _LABEL - 1]}…") for value, text in labels]
