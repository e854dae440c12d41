"""What a search came to, as far as reports need it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raydr.tuning.distributions import Distribution, as_text
from raydr.tuning.importance import Importances
from raydr.tuning.trials import Trial, best_trial


@dataclass(frozen=True)
class SearchResult:
    """A finished search.

    Args:
        name: of the search.
        description: what was searched.
        measure: the dev measure that trials were compared by.
        unit: what trials were measured after: epoch or round.
        parameters: distributions by dotted key.
        trials: by number; 0 is the default.
        importances: of the parameters.
        rungs: epochs, or rounds, after which ASHA compared.
        facts: how it was searched, in sentences.
    """

    name: str
    description: str
    measure: str
    unit: str
    parameters: dict[str, Distribution]
    trials: Sequence[Trial]
    importances: Importances
    rungs: Sequence[int]
    facts: Sequence[str]

    @property
    def default(self) -> Trial:
        return self.trials[0]

    @property
    def best(self) -> Trial:
        best = best_trial(self.trials)
        assert best is not None
        return best

    def ranked(self) -> list[Trial]:
        """Finished trials by their score, then the stopped ones by how far they came, then the failed ones."""
        order = {"finished": 0, "stopped": 1, "failed": 2, "running": 3}
        return sorted(self.trials, key=lambda one: (order[one.status], -one.epochs, -(one.score or 0.0), one.number))


def trial_rows(result: SearchResult, most: int | None = None) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of a table of the trials, the best first; the default is always there.

    Args:
        result: of the search.
        most: trials that are shown; all if None.
    """
    names = short_names(list(result.parameters))
    ranked = result.ranked()
    shown = ranked if most is None else ranked[:most]
    shown += [result.default] * (result.default not in shown)
    rows = []
    for trial in shown:
        score = f"{trial.score:.4f}" if trial.score is not None else ""
        values = [as_text(trial.values[key]) for key in result.parameters]
        number = f"{trial.number} default" if trial.number == 0 else f"{trial.number}"
        epochs = f"{trial.epochs}" if trial.status == "finished" else f"{trial.epochs} {trial.status}"
        rows.append([number, score, epochs, f"{trial.seconds:,.0f}", *values])
    return ["trial", f"dev {result.measure}", f"{result.unit}s", "s", *names.values()], rows


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """The last steps of each key, as many as tell it from the others.

    >>> short_names(["train.optimizer.learning_rate", "judge.sieve.optimizer.learning_rate", "model.scale"])
    {'train.optimizer.learning_rate': 'train.optimizer.learning_rate',
     'judge.sieve.optimizer.learning_rate': 'sieve.optimizer.learning_rate', 'model.scale': 'scale'}
    """
    names = {}
    for key in keys:
        steps = key.split(".")
        for count in range(1, len(steps) + 1):
            ending = ".".join(steps[-count:])
            alike = [other for other in keys if other == ending or other.endswith(f".{ending}")]
            if alike == [key]:
                break
        names[key] = ending
    return names
