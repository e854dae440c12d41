"""The result of a search: its trials, the best trial, and the page with a table and a picture."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Literal

from raydr.component import Config
from raydr.pages.figure import COLORS, Draw, grid
from raydr.pages.html import Page, number
from raydr.pipeline.compare import Compared
from raydr.store import Artifact
from raydr.tuning.plan import TunePlan
from raydr.tuning.settings import Parameter, as_text, is_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: ``finished``: trained to the end; ``stopped``: ended early by the scheduler; ``failed``: all its tries failed.
Status = Literal["running", "finished", "stopped", "failed"]
#: Characters of a value on an axis; longer ones are cut.
_LABEL = 18
#: Maximal number of listed values that an axis shows as categories.
_MOST_TICKS = 10
#: Ratio of the largest to the smallest value above which an axis is logarithmic.
_WIDE = 20


class Row(Config):
    """The state of a trial after an epoch."""

    epoch: int
    """Number of finished epochs."""

    score: float
    """The score by which trials are compared: the dev measure of the weights that the training would keep now."""

    metrics: dict[str, float]


class Trial(Config):
    """A trial of a search; number 0 is the default."""

    number: int
    values: dict[str, Any]
    status: Status = "running"
    rows: list[Row] = []
    error: str = ""
    """The reason of a failure."""

    seconds: float = 0.0
    """Duration of the last attempt."""

    @property
    def score(self) -> float:
        """The last score; -inf before the end of the first epoch."""
        return self.rows[-1].score if self.rows else -math.inf

    @property
    def epochs(self) -> int:
        return self.rows[-1].epoch if self.rows else 0


def rows_of(
    figures: Iterable[Mapping[str, float]], measure: str, keep: Literal["best", "last"], first_epoch: int = 0
) -> list[Row]:
    """Return the rows of a trial.

    Args:
        figures: metrics of each epoch or round; names of dev measures begin with ``dev``.
        measure: the dev measure, as configured.
        keep: ``train.keep``; with ``best`` the score is the best measure so far.
        first_epoch: first epoch, from 0, that the training may keep; the score of an earlier epoch is its own measure.

    >>> figures = [{"dev RR@10": value} for value in [0.1, 0.3, 0.2]]
    >>> [(row.epoch, row.score) for row in rows_of(figures, "RR@10", "best")]
    [(1, 0.1), (2, 0.3), (3, 0.3)]
    """
    rows: list[Row] = []
    for epoch, metrics in enumerate(figures, 1):
        value = metrics[f"dev {measure}"]
        score = max(value, rows[-1].score) if keep == "best" and epoch > first_epoch + 1 else value
        rows.append(Row(epoch=epoch, score=score, metrics=dict(metrics)))
    return rows


def best_trial(trials: Iterable[Trial]) -> Trial | None:
    """Return the finished trial with the highest score; the first of equal trials."""
    finished = (trial for trial in trials if trial.status == "finished")
    return max(finished, key=lambda trial: (trial.score, -trial.number), default=None)


@dataclass(frozen=True)
class TuneOutcome:
    """A finished search.

    Args:
        plan: plan of the search.
        study: the artefact with the trials and the best config.
        trials: all trials by number; 0 is the default.
    """

    plan: TunePlan
    study: Artifact
    trials: Sequence[Trial]
    #: Comparisons of the best trial with the default on each split; empty without ``confirm.num_seeds``.
    confirmations: list[Compared] = field(default_factory=list)

    @property
    def measure(self) -> str:
        """The measure by which trials were compared."""
        return f"dev {self.plan.measure}"

    @property
    def default(self) -> Trial:
        return self.trials[0]

    @property
    def best(self) -> Trial:
        best = best_trial(self.trials)
        assert best is not None
        return best

    def summary(self) -> str:
        """Return a sentence that compares the best trial with the default on dev."""
        best, default = self.best, self.default
        line = f"The best is trial {best.number} with {self.measure} {best.score:.4f}"
        if best is default:
            return f"{line}, the default itself: no other trial is better."
        if default.status == "failed":
            return f"{line}; the default failed: {default.error}"
        return f"{line}, {best.score - default.score:+.4f} against the default's {default.score:.4f}."

    def table(self, most: int | None = None) -> tuple[list[str], list[list[str]]]:
        """Return columns and rows: finished trials by score, then stopped and failed trials; always the default.

        Args:
            most: maximal number of trials; None for all.
        """
        names = short_names(list(self.plan.space.parameters))
        order = {"finished": 0, "stopped": 1, "failed": 2}
        ranked = sorted(self.trials, key=lambda trial: (order[trial.status], -trial.epochs, -trial.score, trial.number))
        rows = []
        for trial in [trial for at, trial in enumerate(ranked) if most is None or at < most or trial is self.default]:
            score = number(trial.score if trial.rows else None, ".4f")
            values = [as_text(trial.values[key]) for key in self.plan.space.parameters]
            label = f"{trial.number} default" if trial.number == 0 else f"{trial.number}"
            epochs = f"{trial.epochs}" if trial.status == "finished" else f"{trial.epochs} {trial.status}"
            rows.append([label, score, epochs, f"{trial.seconds:,.0f}", *values])
        return ["trial", self.measure, f"{self.plan.unit}s", "seconds", *names.values()], rows


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Shorten each key to its last part, unless another key ends in the same part.

    >>> short_names(["train.optimizer.learning_rate", "judge.sieve.optimizer.learning_rate", "model.scale"])
    {'train.optimizer.learning_rate': 'train.optimizer.learning_rate',
     'judge.sieve.optimizer.learning_rate': 'judge.sieve.optimizer.learning_rate', 'model.scale': 'scale'}
    """
    last = Counter(key.rpartition(".")[2] for key in keys)
    return {key: key if last[short := key.rpartition(".")[2]] > 1 else short for key in keys}


def tuning_page(outcome: TuneOutcome, picture: bytes, best_config: str) -> str:
    """Return the self-contained HTML page of a search.

    Args:
        outcome: the search.
        picture: the score against each setting.
        best_config: YAML of the best config, with a comment on its origin.
    """
    space = outcome.plan.space
    confirmation = (
        "Below, both are trained with other seeds and compared on test."
        if outcome.confirmations
        else "Next: confirm.num_seeds trains both with other seeds, and compares them on test."
    )
    caution = f"The best of many trials looks better on dev than it is, since it was chosen there. {confirmation}"
    page = Page(f"Search {space.name}", outcome.summary(), caution)
    if space.settings.description:
        page.paragraph(f"Searched: {space.settings.description}.")
    for fact in outcome.study.info["facts"]:
        page.note(fact)
    for compared in outcome.confirmations:
        page.heading(f"Best against default on {compared.split}")
        seeds = ", ".join(map(str, compared.seeds))
        page.table(f"trained again with the seeds {seeds}; paired randomisation test (two-sided)", *compared.rows())
        page.note(
            "Each query's value is its mean over the seeds. Intervals: bootstrap over queries; p is not corrected for "
            "the number of measures. Neither covers the choice of the seeds."
        )
    page.heading("Search space")
    page.table("settings, their defaults, and the values that were tried", *space.rows())
    page.heading("Trials")
    page.table("finished trials first, the best on top", *outcome.table())
    if failed := [[f"{trial.number}", trial.error] for trial in outcome.trials if trial.status == "failed"]:
        page.table("failed trials", ["trial", "reason"], failed)
    page.picture(picture, f"{outcome.measure} against each setting; hollow: stopped early; the default is ringed")
    page.heading("The best config").preformatted("best.yaml, beside this page", best_config)
    return page.render()


def score_by_setting(outcome: TuneOutcome) -> bytes:
    """Draw the score of all trials against each setting in a panel of its own; return a PNG."""
    styles = {"finished": ("trained to the end", COLORS[0]), "stopped": ("stopped early", "none")}

    def panel(key: str, parameter: Parameter) -> Draw:
        listed, tried = parameter.values or (), [trial.values[key] for trial in outcome.trials]
        texts = list(dict.fromkeys(map(as_text, [*listed, *tried])))
        # A numeric axis for numbers of a range, or for too many numbers to list.
        numeric = not 0 < len(listed) <= _MOST_TICKS and all(map(is_number, [*parameter.ends, *tried]))

        def place(trial: Trial) -> float:
            value = trial.values[key]
            return float(value) if numeric else texts.index(as_text(value))

        def draw(axes: Axes) -> None:
            for status, (label, color) in styles.items():
                trials = [trial for trial in outcome.trials if trial.status == status]
                scores = [trial.score for trial in trials]
                look: Any = {"s": 22, "facecolors": color, "edgecolors": COLORS[0]}
                axes.scatter(list(map(place, trials)), scores, label=label, **look)
            if outcome.default.status != "failed":
                ring: Any = {"s": 120, "facecolors": "none", "edgecolors": COLORS[1], "linewidths": 1.5}
                axes.scatter([place(outcome.default)], [outcome.default.score], label="default", **ring)
            if not numeric:
                labels = [shorten(text, _LABEL, placeholder="…") for text in texts]
                axes.set_xticks(range(len(labels)), labels, rotation=35)
            elif parameter.log or (min(parameter.ends) > 0 and max(parameter.ends) > _WIDE * min(parameter.ends)):
                axes.set_xscale("log")
            axes.set_ylabel(outcome.measure)

        return draw

    parameters = outcome.plan.space.parameters
    panels = [(name, panel(key, parameters[key])) for key, name in short_names(list(parameters)).items()]
    return grid(panels, f"{outcome.plan.space.name}: score against each setting")
