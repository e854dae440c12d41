"""The processes that train together, as what they run sees them: this one alone, or workers of Ray Train.

Training stops for a copy of its state to host memory; a thread writes it. The next state waits for the one before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from raydr.store.folder import Folder, publish_files
from raydr.training.checkpoint import PROGRESS, Save

if TYPE_CHECKING:
    import torch
    from ray.train import Checkpoint
    from torch import nn


class WorkerContext(Protocol):
    """One of the processes that train together, or the only one."""

    rank: int
    num_ranks: int
    device: torch.device

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module as a training step calls it."""

    def last_state(self) -> AbstractContextManager[Path | None]:
        """A folder with the last state of this training that was kept, None if there is none."""

    def report(self, metrics: dict[str, Any], copy: Callable[[], Save]) -> None:
        """Begin to keep a state, when the one before is kept; every member calls it the same number of times.

        Args:
            metrics: ``global_step`` among them, the optimiser's steps so far.
            copy: takes the state to host memory; called before this returns, on rank 0 alone.

        Raises:
            OSError, ArtifactError: the state before could not be kept.
        """

    def kept(self) -> bool:
        """Whether the last state that was reported is kept; raises as :meth:`report` does."""

    def wait(self) -> None:
        """Until it is; raises as :meth:`report` does."""


#: What a member runs, given its job: returns the outcome. An outcome ``{"error": message}`` ends training without
#: another try; whatever is raised makes Ray Train start the group again.
Worker = Callable[[Any, WorkerContext], dict[str, Any]]


class SingleProcess:
    """The only process of a training; keeps its last state.

    Args:
        states: the folder of its states.
        device: it trains on.
    """

    rank = 0
    num_ranks = 1

    def __init__(self, states: Folder, device: torch.device) -> None:
        self.states = states
        self.device = device
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="raydr-state")
        self._writing: Future[None] | None = None

    def wrap(self, module: nn.Module) -> nn.Module:
        return module

    @contextmanager
    def last_state(self) -> Iterator[Path | None]:
        yield _localize(self.states, _whole_states(self.states))

    def report(self, metrics: dict[str, Any], copy: Callable[[], Save]) -> None:
        self.wait()
        self._writing = self._thread.submit(self._keep, _state_name(metrics), copy())

    def kept(self) -> bool:
        if self._writing is not None and not self._writing.done():
            return False
        self.wait()
        return True

    def wait(self) -> None:
        if self._writing is not None:
            self._writing.result()

    def close(self) -> None:
        """Wait for the last state, however training has ended."""
        self._thread.shutdown()

    def _keep(self, name: str, save: Save) -> None:
        publish_files(self.states / name, save, last=PROGRESS)
        drop_all_but_last(self.states)


class RayTrainProcess:
    """A worker of Ray Train; made in the worker.

    Args:
        states: the folder that Ray Train keeps the group's checkpoints in.
    """

    def __init__(self, states: Folder) -> None:
        import ray.train
        from ray.train.torch import get_device

        self.states = states
        self.context = ray.train.get_context()
        self.rank: int = self.context.get_world_rank()
        self.num_ranks: int = self.context.get_world_size()
        self.device: torch.device = get_device()
        self.written = threading.Event()
        self.written.set()
        self.failure: Exception | None = None

    def wrap(self, module: nn.Module) -> nn.Module:
        from ray.train.torch import prepare_model

        from raydr.training.collectives import DDP_SETTINGS

        wrapped: nn.Module = prepare_model(module, parallel_strategy_kwargs=DDP_SETTINGS)
        return wrapped

    @contextmanager
    def last_state(self) -> Iterator[Path | None]:
        from raydr.training.collectives import broadcast_object

        # Not by Ray Train's list, which lags behind. Rank 0 looks: what is left of a killed group may still write one.
        yield _localize(self.states, broadcast_object(_whole_states(self.states)))

    def report(self, metrics: dict[str, Any], copy: Callable[[], Save]) -> None:
        import ray.train
        from ray.train import CheckpointUploadMode

        if self.rank:
            ray.train.report(metrics)
            return
        # One at a time: a slow store must fill neither this node's disk nor its memory.
        self.wait()
        storage, name, save = self.context.get_storage(), _state_name(metrics), copy()
        self.written.clear()
        ray.train.report(
            metrics,
            checkpoint=ray.train.Checkpoint(storage.build_checkpoint_path_from_name(name), storage.storage_filesystem),
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            checkpoint_upload_fn=partial(self._keep, save, name),
            # There is one, and it is where it is to stay.
            delete_local_checkpoint_after_upload=False,
        )

    def kept(self) -> bool:
        if self.failure is not None:
            raise self.failure
        return self.written.is_set()

    def wait(self) -> None:
        self.written.wait()
        self.kept()

    def _keep(self, save: Save, name: str, checkpoint: Checkpoint, ray_name: str) -> Checkpoint:
        """Write a state where Ray Train keeps them, in a thread of Ray's, under the name that a process alone gives it
        too: either goes on from the other's.
        """
        try:
            publish_files(self.states / name, save, last=PROGRESS)
        except Exception as error:
            self.failure = error
            raise
        finally:
            self.written.set()
        return checkpoint


def drop_all_but_last(states: Folder) -> None:
    """Remove all states but the last whole one."""
    last = _whole_states(states)[-1:]
    for name in _state_names(states):
        if name not in last:
            states.remove(name)


def _state_name(metrics: dict[str, Any]) -> str:
    return f"step-{metrics['global_step']:09d}"


def _state_names(states: Folder) -> list[str]:
    """Of the states, whole or not, by step; other files beside them are none."""
    return sorted({name.split("/")[0] for name in states.files() if "/" in name})


def _whole_states(states: Folder) -> list[str]:
    return [name for name in _state_names(states) if states.exists(f"{name}/{PROGRESS}")]


def _localize(states: Folder, names: list[str]) -> Path | None:
    """The last of these states."""
    return Path((states / names[-1]).localize_all()) if names else None


def checkpoint_folder(output: Folder) -> Folder:
    """Where the checkpoints of an artefact that is being trained lie, given where that goes."""
    return Folder(f"{output.url.rstrip('/')}.training")
