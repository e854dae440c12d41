"""A trial that is one training: it makes what it reads, trains, and tells its dev measure after each epoch."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from raydr.config.run import RunConfig
from raydr.stages.pool import ThisProcess
from raydr.stages.ray_pool import RayPool
from raydr.store.folder import Folder
from raydr.tuning.trial_nodes import make, missing, trained
from raydr.tuning.trial_work import (
    INPUTS,
    LOOK_S,
    RESOURCES,
    News,
    in_spite_of_lost_nodes,
    outside,
    result_of,
    wait_for,
)
from raydr.tuning.trials import rows_of

if TYPE_CHECKING:
    from raydr.training.checkpoint import Progress

#: The history of the training in its trial's folder; it is there as soon as the training begins.
HISTORY = "history.json"


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


class InputMaker:
    """Ray actor that makes what trials train on, one after the other.

    What two of them need is made once, and no two wait for CPUs that the other one's actors hold.
    """

    def make(self, config: RunConfig) -> None:
        make(config, trained(config).inputs.values())


def follow_training(config: RunConfig, place: Folder, inputs: Any) -> Generator[News, None, None]:
    """Train, and tell the rows so far again and again.

    Args:
        config: of the trial.
        place: its folder.
        inputs: the actor that makes what it trains on.
    """
    if missing(config, trained(config).inputs.values()):
        made = inputs.make.remote(config)
        yield from wait_for(made, INPUTS)
        result_of(made)
    yield from in_spite_of_lost_nodes(lambda: _follow(config, place))


def _follow(config: RunConfig, place: Folder) -> Generator[News, None, None]:
    # Else it would seem that the training has begun.
    place.remove(HISTORY)
    # A group of Ray Train books its own.
    settings, alone = config.train, config.train.num_workers == 1
    needs: dict[str, Any] = {"num_cpus": settings.cpus_per_worker, "num_gpus": float(settings.use_gpu)}
    needs = needs | {"node_labels": settings.node_labels} if alone else {}
    with outside(train, config, place, **needs) as training:
        yield from wait_for(training, RESOURCES, lambda: place.exists(HISTORY))
        while not ray.wait([training], timeout=LOOK_S)[0]:
            yield News(rows_of(place.read_json(HISTORY), settings.dev.measure, settings.keep))
        yield News(rows_of(result_of(training), settings.dev.measure, settings.keep), finished=True)


def train(config: RunConfig, place: Folder) -> list[dict[str, Any]]:
    """Train in the main thread, where Ray Train can be interrupted; returns the whole history."""
    node = trained(config, HistoryWatcher(place))
    pool = ThisProcess(config.train.cpus_per_worker) if config.train.num_workers == 1 else RayPool()
    inventory = make(config, [node], pool)
    history: list[dict[str, Any]] = inventory.open(node).info["history"]
    return history
