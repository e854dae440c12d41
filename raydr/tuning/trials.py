"""What a trial has done, as far as it has come; written after every epoch, so that a killed search loses nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from raydr.component import Config
from raydr.store.folder import Folder
from raydr.tuning.parameters import as_text, is_number

#: Say in a result for what the trial waits, and for how many seconds it has waited.
WAITS_FOR, WAITED = "waits_for", "waited_s"
#: ``finished``: trained to its end; ``stopped``: by the scheduler; ``failed``: after all its tries.
Status = Literal["running", "finished", "stopped", "failed"]


#: Folder of the running trials' own files, below the search's.
PLACES = "places"


def place_of(search: Folder, number: int) -> Folder:
    """A trial's own folder."""
    return search / PLACES / f"trial-{number:03d}"


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
    """From its start to its end, without the time between two attempts of the search."""

    @property
    def over(self) -> bool:
        return self.status != "running"

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
    for one in history:
        value = float(one["metrics"][f"dev {measure}"])
        score = max(value, rows[-1].score) if rows and keep == "best" else value
        rows.append(Row(epoch=one["epoch"] + 1, score=score, metrics=dict(one["metrics"])))
    return rows


def best_trial(trials: Iterable[Trial]) -> Trial | None:
    """The one with the highest score among those trained to their end; the first of equal ones."""
    finished = [trial for trial in trials if trial.status == "finished" and trial.score is not None]
    return max(finished, key=lambda trial: (trial.score, -trial.number), default=None)


def common_epoch(trials: Iterable[Trial]) -> int:
    """The last epoch that all trials came to, failed ones aside: the only one after which all can be compared."""
    return min((trial.epochs for trial in trials if trial.status in ("finished", "stopped")), default=0)


def as_table(trials: Sequence[Trial]) -> pa.Table:
    """One row a trial and epoch, and one for a trial without epochs; values as numbers if all are, else as text."""
    pairs: list[tuple[Trial, Row | None]] = []
    for trial in trials:
        pairs += [(trial, row) for row in trial.rows] or [(trial, None)]
    metrics = [list(row.metrics.items()) if row else [] for _, row in pairs]
    columns: dict[str, Any] = {
        "trial": [trial.number for trial, _ in pairs],
        "status": [trial.status for trial, _ in pairs],
        "error": [trial.error for trial, _ in pairs],
        "epoch": pa.array([row.epoch if row else None for _, row in pairs], pa.int64()),
        "score": pa.array([row.score if row else None for _, row in pairs], pa.float64()),
        "metrics": pa.array(metrics, pa.map_(pa.string(), pa.float64())),
    }
    for key in dict.fromkeys(key for trial in trials for key in trial.values):
        values = [trial.values.get(key) for trial, _ in pairs]
        numeric = all(is_number(value) for value in values)
        columns[f"value:{key}"] = np.array(values, dtype=float) if numeric else [as_text(value) for value in values]
    return pa.table(columns)
