"""The process of a training worker: the only process, or a rank under torchrun.

Training stops while its state is copied to host memory; a thread writes the copy. The next state waits for the thread.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from raydr.store.folder import Folder, publish_files
from raydr.training.checkpoint import PROGRESS, Save, drop_all_but_last, state_name, whole_states
from raydr.training.collectives import broadcast_object, num_ranks, rank
from raydr.training.config import DDP_SETTINGS


class WorkerProcess(Protocol):
    """A process of a training, which is its only process or a rank of a group."""

    rank: int
    num_ranks: int
    device: torch.device
    #: The folder of the training's states.
    states: Folder

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return the module as a training step calls it."""

    def has_notice(self) -> bool:
        """Return whether a node of the group is about to be taken back, equal on every rank; all ranks call it."""

    def report(self, metrics: dict[str, Any], copy: Callable[[], Save]) -> None:
        """Start to write a state once the previous state is written; every rank calls it the same number of times.

        Args:
            metrics: figures of the state, including ``global_step``, the number of optimiser steps.
            copy: function that copies the state to host memory; called before the return, on rank 0 alone.

        Raises:
            OSError, ArtifactError: the previous state could not be written.
        """

    def kept(self) -> bool:
        """Return whether the last reported state is written; raise the errors of :meth:`report`."""

    def wait(self) -> None:
        """Wait until the last reported state is written; raise the errors of :meth:`report`."""


#: Function of a worker, from a job and its process to the outcome. An outcome ``{"error": message}`` ends training
#: without a retry. After an exception Ray Train restarts the group.
Worker = Callable[[Any, WorkerProcess], dict[str, Any]]


def last_state(states: Folder) -> Path | None:
    """Return a local folder with the last complete state, the same state on every rank; None without a state."""
    # Rank 0 decides, since a process of a killed group may still write a state. Ray Train's list lags behind.
    names = broadcast_object(whole_states(states))
    return Path((states / names[-1]).localize_all()) if names else None


class TorchProcess:
    """A process without Ray: the only process of its training, or a rank of PyTorch's process group.

    Args:
        states: folder of the training's states.
        device: device of the training.
    """

    def __init__(self, states: Folder, device: torch.device) -> None:
        self.states = states
        self.device = device
        self.rank = rank()
        self.num_ranks = num_ranks()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="raydr-state")
        self._writing: Future[None] | None = None

    def wrap(self, module: nn.Module) -> nn.Module:
        if self.num_ranks == 1:
            return module
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(module, device_ids=devices, **DDP_SETTINGS)

    def has_notice(self) -> bool:
        return False

    def report(self, metrics: dict[str, Any], copy: Callable[[], Save]) -> None:
        if self.rank:
            return
        self.wait()
        self._writing = self._thread.submit(self._keep, state_name(metrics["global_step"]), copy())

    def kept(self) -> bool:
        if self._writing is not None and not self._writing.done():
            return False
        self.wait()
        return True

    def wait(self) -> None:
        if self._writing is not None:
            self._writing.result()

    def close(self) -> None:
        """Wait for the last state, also after an error."""
        self._thread.shutdown()

    def _keep(self, name: str, save: Save) -> None:
        publish_files(self.states / name, save, last=PROGRESS)
        drop_all_but_last(self.states)
