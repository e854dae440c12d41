"""A trial that is one training: it makes what it reads, trains, and tells its dev measure after each epoch."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from raydr.config.run import RunConfig
from raydr.stages.pool import ThisProcess
from raydr.stages.ray_pool import RayPool
from raydr.store.folder import Folder
from raydr.tuning.trial_nodes import make, missing, trained
from raydr.tuning.trial_work import News, outside, result_of
from raydr.tuning.trials import Row, rows_of

if TYPE_CHECKING:
    from raydr.training.checkpoint import Progress

#: The history of the training in its trial's folder; it is there as soon as the training begins.
HISTORY = "history.json"
#: Seconds between two looks at a training, and between two words about waiting.
_LOOK_S, _WORD_S = 0.5, 60.0


@dataclass(frozen=True)
class HistoryWatcher:
    """Writes the history of a training after each epoch, but not the last: that is over when the model is saved.

    Args:
        place: of the trial.
    """

    place: Folder

    def tell(self, message: str) -> None:
        """Nobody reads the lines of single trials; the first says that the training has begun."""
        if not self.place.exists(HISTORY):
            self.place.write_json(HISTORY, [])

    def step(self, progress: Progress, num_steps: int) -> None:
        """Only epochs count."""

    def epoch(self, progress: Progress) -> None:
        if not progress.finished:
            self.place.write_json(HISTORY, [row.model_dump() for row in progress.history])


def follow_training(config: RunConfig, place: Folder) -> Generator[News, None, None]:
    """Train, and tell the rows so far again and again.

    Args:
        config: of the trial.
        place: its folder.
    """
    if missing(config, trained(config).inputs.values()):
        with outside(make_inputs, config) as work:
            result_of(work)

    def rows(history: list[dict[str, Any]]) -> list[Row]:
        return rows_of(history, config.train.dev.measure, config.train.keep)

    # Else it would seem that the training has begun.
    place.remove(HISTORY)
    # A group of Ray Train books its own.
    alone = config.train.num_workers == 1
    needs = {"num_cpus": config.train.cpus_per_worker, "num_gpus": float(config.train.use_gpu)} if alone else {}
    with outside(train, config, place, **needs) as training:
        since = told = time.monotonic()
        while not ray.wait([training], timeout=_LOOK_S)[0]:
            if place.exists(HISTORY):
                yield News(rows(place.read_json(HISTORY)))
            elif time.monotonic() > told + _WORD_S:
                told = time.monotonic()
                yield News([], waited_s=told - since)
        yield News(rows(result_of(training)), finished=True)


def make_inputs(config: RunConfig) -> None:
    """Make what a trial trains on, as far as it is not there."""
    make(config, trained(config).inputs.values())


def train(config: RunConfig, place: Folder) -> list[dict[str, Any]]:
    """Train in the main thread, where Ray Train can be interrupted; returns the whole history."""
    node = trained(config, HistoryWatcher(place))
    inventory = make(config, [node], ThisProcess() if config.train.num_workers == 1 else RayPool())
    history: list[dict[str, Any]] = inventory.open(node).info["history"]
    return history
