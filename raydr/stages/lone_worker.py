"""A training in one process, without Ray Train: as a task of its own it starts in seconds and leaves nothing behind.

The result is that of a worker group: the batch is global. The state lies beside the artefact as a group's checkpoints
do, and the same training goes on from it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from raydr.errors import TrainingError
from raydr.stages.states import has_state, keep_state, local_state
from raydr.stages.worker_group import Member, checkpoint_folder
from raydr.store.artifact import Building
from raydr.store.folder import Folder
from raydr.training.checkpoint import load_progress
from raydr.training.config import TrainConfig

if TYPE_CHECKING:
    import torch
    from torch import nn


#: Folder of the states of a population's member: its settings change, and the fingerprint of its model with them.
POPULATION = "population"
#: States that a member of a population keeps: one must stay while it is copied, and training may go on meanwhile.
_POPULATION_STATES = 6


@dataclass(frozen=True)
class Alone:
    """How one process trains.

    Args:
        population: the settings may have changed since the last state, as in population based training.
        start: a state to go on from in place of the last, another member's for example.
    """

    population: bool = False
    start: Folder | None = None


class MemberWorker(Protocol):
    """A worker function that can be told which member it is."""

    def __call__(self, arguments: dict[str, Any], member: Member) -> dict[str, Any]:
        """See :data:`raydr.stages.worker_group.Worker`."""


class LoneMember:
    """The only process of a training; keeps its last state."""

    rank = 0
    num_ranks = 1

    def __init__(self, states: Folder, device: torch.device, how: Alone) -> None:
        self.states = states
        self.device = device
        self.how = how

    def wrap(self, module: nn.Module) -> nn.Module:
        return module

    @contextmanager
    def last_state(self) -> Iterator[Path | None]:
        last = newest_state(self.states) if self.how.start is None else self._take_up(self.how.start)
        yield local_state(last) if last is not None else None

    def _take_up(self, start: Folder) -> Folder:
        """Make another's state this member's own and last one; its later ones are given up."""
        found = local_state(start)
        mine = self.states / _name(load_progress(found).global_step)
        if mine.root != start.root:
            mine.remove()

            def copy(scratch: Path) -> None:
                shutil.copytree(found, scratch, dirs_exist_ok=True)

            keep_state(mine, copy)
        for name in _names(self.states):
            if name > Path(mine.root).name:
                self.states.remove(name)
        return mine

    def report(self, metrics: dict[str, Any], save: Callable[[Path], None]) -> None:
        keep_state(self.states / _name(metrics["global_step"]), save)
        kept = _POPULATION_STATES if self.how.population else 1
        for old in _names(self.states)[:-kept]:
            self.states.remove(old)


def newest_state(states: Folder) -> Folder | None:
    """The state after most steps that is whole."""
    whole = [states / name for name in _names(states) if has_state(states / name)]
    return whole[-1] if whole else None


def _name(global_step: int) -> str:
    return f"step-{global_step:09d}"


def _names(states: Folder) -> list[str]:
    """Of the states, whole or not, by step."""
    return sorted({name.split("/")[0] for name in states.files()})


def run_alone(
    worker: MemberWorker, arguments: dict[str, Any], making: Building, settings: TrainConfig, what: str, how: Alone
) -> dict[str, Any]:
    """Run a worker function in this process, from the last state of an interrupted run if there is one.

    The arguments but the last are those of :func:`raydr.stages.worker_group.run_worker_group`.

    Raises:
        TrainingError: training broke off; the same command goes on from the last state.
    """
    import torch

    states = checkpoint_folder(making.folder) / (POPULATION if how.population else making.identity.fingerprint)
    outcome = worker(arguments, LoneMember(states, torch.device("cuda" if settings.use_gpu else "cpu"), how))
    if "error" in outcome:
        raise TrainingError(f"training {what}: {outcome['error']}")
    return outcome
