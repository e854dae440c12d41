"""What a search came to: its trials, the best of them, and the page with a table and a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from raydr.component import Config
from raydr.pages.figure import COLORS, Draw, grid
from raydr.pages.html import Page, number
from raydr.pipeline.compare import Compared
from raydr.tuning.plan import TunePlan
from raydr.tuning.settings import Parameter, as_text, is_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: ``finished``: trained to its end; ``stopped``: by the scheduler; ``failed``: after all its tries.
Status = Literal["running", "finished", "stopped", "failed"]
#: Characters of a value on an axis; longer ones are cut.
_LABEL = 18
#: Listed numbers that an axis shows one by one.
_MOST_TICKS = 10
#: An axis of positive numbers is logarithmic if the largest is so many times the smallest.
_WIDE = 20


class Row(Config):
    """A trial after one epoch."""

    epoch: int
    """Epochs finished, from 1."""

    score: float
    """What trials are compared by: the dev measure of the state that this training would keep now."""

    metrics: dict[str, float]


class Trial(Config):
    """One trial of a search; number 0 is the default."""

    number: int
    values: dict[str, Any]
    status: Status = "running"
    rows: list[Row] = []
    error: str = ""
    """Why it failed."""

    seconds: float = 0.0
    """That its last attempt took."""

    @property
    def score(self) -> float | None:
        """The last one; None before the first epoch is over."""
        return self.rows[-1].score if self.rows else None

    @property
    def epochs(self) -> int:
        return self.rows[-1].epoch if self.rows else 0


def rows_of(history: Sequence[Mapping[str, Any]], measure: str, keep: Literal["best", "last"]) -> list[Row]:
    """Rows out of the history of a training.

    Args:
        history: of its manifest or progress: ``epoch`` from 0, and ``metrics``.
        measure: the dev measure, as configured.
        keep: ``train.keep``: with ``best`` the score is the best measure so far.

    >>> history = [{"epoch": at, "metrics": {"dev RR@10": value}} for at, value in enumerate([0.1, 0.3, 0.2])]
    >>> [(row.epoch, row.score) for row in rows_of(history, "RR@10", "best")]
    [(1, 0.1), (2, 0.3), (3, 0.3)]
    """
    rows: list[Row] = []
    for epoch in history:
        value = float(epoch["metrics"][f"dev {measure}"])
        score = max(value, rows[-1].score) if rows and keep == "best" else value
        rows.append(Row(epoch=epoch["epoch"] + 1, score=score, metrics=dict(epoch["metrics"])))
    return rows


def best_trial(trials: Iterable[Trial]) -> Trial | None:
    """The one with the highest score among those trained to their end; the first of equal ones."""
    finished = [trial for trial in trials if trial.status == "finished" and trial.score is not None]
    return max(finished, key=lambda trial: (trial.score, -trial.number), default=None)


@dataclass(frozen=True)
class StudyResult:
    """A finished search.

    Args:
        plan: what was searched.
        name: of the search.
        facts: how it was searched, in sentences.
        trials: by number; 0 is the default.
    """

    plan: TunePlan
    name: str
    facts: Sequence[str]
    trials: Sequence[Trial]

    @property
    def measure(self) -> str:
        """What trials were compared by."""
        return f"dev {self.plan.measure}"

    @property
    def default(self) -> Trial:
        return self.trials[0]

    @property
    def best(self) -> Trial:
        best = best_trial(self.trials)
        assert best is not None
        return best

    def outcome(self) -> str:
        """Which trial is the best, and how it compares with the default on dev, where it was chosen."""
        best, default = self.best, self.default
        line = f"The best is trial {best.number} with {self.measure} {best.score or 0.0:.4f}"
        if best is default:
            return f"{line}, the default itself: nothing that was tried is better."
        if default.score is None or best.score is None:
            return f"{line}; the default failed: {default.error}"
        return f"{line}, {best.score - default.score:+.4f} against the default's {default.score:.4f}."

    def table(self, most: int | None = None) -> tuple[list[str], list[list[str]]]:
        """Columns and rows: finished trials by their score, then the stopped ones, then the failed; always the default.

        Args:
            most: trials that are shown; all if None.
        """
        names = short_names(list(self.plan.space.parameters))
        order = {"finished": 0, "stopped": 1, "failed": 2}
        ranked = sorted(
            self.trials, key=lambda trial: (order[trial.status], -trial.epochs, -(trial.score or 0.0), trial.number)
        )
        rows = []
        for trial in [trial for at, trial in enumerate(ranked) if most is None or at < most or trial is self.default]:
            score = number(trial.score, ".4f")
            values = [as_text(trial.values[key]) for key in self.plan.space.parameters]
            label = f"{trial.number} default" if trial.number == 0 else f"{trial.number}"
            epochs = f"{trial.epochs}" if trial.status == "finished" else f"{trial.epochs} {trial.status}"
            rows.append([label, score, epochs, f"{trial.seconds:,.0f}", *values])
        return ["trial", self.measure, f"{self.plan.unit}s", "seconds", *names.values()], rows


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """The last step of each key; all of it where another one ends in the same.

    >>> short_names(["train.optimizer.learning_rate", "judge.sieve.optimizer.learning_rate", "model.scale"])
    {'train.optimizer.learning_rate': 'train.optimizer.learning_rate',
     'judge.sieve.optimizer.learning_rate': 'judge.sieve.optimizer.learning_rate', 'model.scale': 'scale'}
    """
    last = Counter(key.rpartition(".")[2] for key in keys)
    return {key: key if last[short := key.rpartition(".")[2]] > 1 else short for key in keys}


def tuning_page(result: StudyResult, picture: bytes, confirmations: Sequence[Compared], best_config: str) -> str:
    """The self-contained HTML page.

    Args:
        result: of the search.
        picture: the score against each setting.
        confirmations: one a split; empty if the best was not trained anew.
        best_config: YAML of the best config, with where it comes from.
    """
    space = result.plan.space
    left = (
        "Below, both are trained with other seeds and compared on test."
        if confirmations
        else "Next: confirm.num_seeds trains both with other seeds, and compares them on test."
    )
    sure = f"The best of many trials looks better on dev than it is, since it was chosen there. {left}"
    page = Page(f"Search {result.name}", result.outcome(), sure)
    if space.settings.description:
        page.paragraph(f"Searched: {space.settings.description}.")
    for fact in result.facts:
        page.note(fact)
    for compared in confirmations:
        page.heading(f"Best against default on {compared.split}")
        seeds = ", ".join(map(str, compared.seeds))
        page.table(f"trained anew with the seeds {seeds}; paired randomisation test (two-sided)", *compared.rows())
        page.note(
            "Each query's value is its mean over the seeds. Intervals: bootstrap over queries; p is not corrected for "
            "the number of measures. Neither covers the choice of the seeds."
        )
    page.heading("What was searched")
    page.table("settings, their defaults, and what was tried", *space.rows())
    page.heading("Trials")
    page.table("trained to the end first, the best on top", *result.table())
    if failed := [[f"{trial.number}", trial.error] for trial in result.trials if trial.status == "failed"]:
        page.table("failed trials", ["trial", "why"], failed)
    page.picture(picture, f"{result.measure} against each setting; hollow: stopped early; the default is ringed")
    page.heading("The best config").preformatted("best.yaml, beside this page", best_config)
    return page.render()


def score_by_setting(result: StudyResult) -> bytes:
    """The score of all trials against each setting, one panel each; a PNG."""
    parameters, default = result.plan.space.parameters, result.default
    styles = {"finished": ("trained to the end", COLORS[0]), "stopped": ("stopped early", "none")}

    def panel(key: str, parameter: Parameter) -> Draw:
        def place(trial: Trial) -> float:
            """A number of a range where it is, a listed value by its place, a default outside the list before it."""
            value, at = trial.values[key], parameter.encode(trial.values[key])
            return float(value) if is_range(parameter) and is_number(value) else -1.0 if at is None else float(at)

        def draw(axes: Axes) -> None:
            for status, (label, color) in styles.items():
                trials = [trial for trial in result.trials if trial.status == status and trial.score is not None]
                scores = np.array([trial.score for trial in trials])
                axes.scatter(
                    list(map(place, trials)), scores, s=22, facecolors=color, edgecolors=COLORS[0], label=label
                )
            if default.score is not None:
                ring: Any = {"facecolors": "none", "edgecolors": COLORS[1], "linewidths": 1.5, "label": "default"}
                axes.scatter([place(default)], [default.score], s=120, **ring)
            if not is_range(parameter):
                labels = [shorten(as_text(value), _LABEL, placeholder="…") for value in parameter.values or ()]
                axes.set_xticks(range(len(labels)), labels, rotation=35)
            elif parameter.log or (min(parameter.ends) > 0 and max(parameter.ends) > _WIDE * min(parameter.ends)):
                axes.set_xscale("log")
            axes.set_ylabel(result.measure)

        return draw

    panels = [(name, panel(key, parameters[key])) for key, name in short_names(list(parameters)).items()]
    return grid(panels, f"{result.name}: score against each setting")


def is_range(parameter: Parameter) -> bool:
    """Whether its values are numbers on an axis: a range, or more listed numbers than an axis has room for."""
    is_long = parameter.values is None or len(parameter.values) > _MOST_TICKS
    return is_long and all(map(is_number, parameter.ends))
