"""What a search came to, as far as reports need it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from raydr.tuning.importance import Importances
from raydr.tuning.parameters import as_text
from raydr.tuning.plan import TunePlan
from raydr.tuning.trials import Trial, best_trial


@dataclass(frozen=True)
class StudyResult:
    """A finished search.

    Args:
        plan: what was searched.
        name: of the search.
        facts: how it was searched, in sentences.
        trials: by number; 0 is the default.
        importances: of the parameters.
    """

    plan: TunePlan
    name: str
    facts: Sequence[str]
    trials: Sequence[Trial]
    importances: Importances

    @property
    def measure(self) -> str:
        """What trials were compared by."""
        return f"dev {self.plan.measure}"

    @property
    def unit(self) -> str:
        """What trials were measured after: epoch or round."""
        return self.plan.schedule.unit

    @property
    def default(self) -> Trial:
        return self.trials[0]

    @property
    def best(self) -> Trial:
        best = best_trial(self.trials)
        assert best is not None
        return best


def trial_rows(result: StudyResult, most: int | None = None) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of a table of the trials: finished ones by their score, then the stopped ones, then the failed.

    The default is always there.

    Args:
        result: of the search.
        most: trials that are shown; all if None.
    """
    names = short_names(list(result.plan.space.parameters))
    order = {"finished": 0, "stopped": 1, "failed": 2}
    ranked = sorted(result.trials, key=lambda one: (order[one.status], -one.epochs, -(one.score or 0.0), one.number))
    rows = []
    for trial in [one for at, one in enumerate(ranked) if most is None or at < most or one is result.default]:
        score = f"{trial.score:.4f}" if trial.score is not None else ""
        values = [as_text(trial.values[key]) for key in result.plan.space.parameters]
        number = f"{trial.number} default" if trial.number == 0 else f"{trial.number}"
        epochs = f"{trial.epochs}" if trial.status == "finished" else f"{trial.epochs} {trial.status}"
        rows.append([number, score, epochs, f"{trial.seconds:,.0f}", *values])
    return ["trial", result.measure, f"{result.unit}s", "s", *names.values()], rows


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """The last step of each key; all of it where another one ends in the same.

    >>> short_names(["train.optimizer.learning_rate", "judge.sieve.optimizer.learning_rate", "model.scale"])
    {'train.optimizer.learning_rate': 'train.optimizer.learning_rate',
     'judge.sieve.optimizer.learning_rate': 'judge.sieve.optimizer.learning_rate', 'model.scale': 'scale'}
    """
    last = Counter(key.rpartition(".")[2] for key in keys)
    return {key: key if last[short := key.rpartition(".")[2]] > 1 else short for key in keys}
