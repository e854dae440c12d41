"""The processes that train together, as what they run sees them: this one alone, or workers of Ray Train.

Training stops for a copy of its state to host memory; a thread writes it. The next state waits for the one before.
"""

from __future__ import annotations

import shutil
import tempfile
import time
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

#: Seconds between two looks whether a state is kept.
_LOOK_S = 0.1


class Member(Protocol):
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
Worker = Callable[[Any, Member], dict[str, Any]]


class LoneMember:
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
        yield _localize_last(self.states, _whole_states(self.states))

    def report(self, metrics: dict[str, Any], copy: Callable[[], Save]) -> None:
        self.wait()
        self._writing = self._thread.submit(self._keep, f"step-{metrics['global_step']:09d}", copy())

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
        for old in _state_names(self.states)[:-1]:
            self.states.remove(old)


class RayTrainMember:
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
        #: Where the last state is written to, until it is copied to where states are kept.
        self.leaving: Path | None = None
        self.failure: Exception | None = None

    def wrap(self, module: nn.Module) -> nn.Module:
        from ray.train.torch import prepare_model

        from raydr.training.exchange import DDP_SETTINGS

        wrapped: nn.Module = prepare_model(module, parallel_strategy_kwargs=DDP_SETTINGS)
        return wrapped

    @contextmanager
    def last_state(self) -> Iterator[Path | None]:
        from raydr.training.collectives import broadcast_object

        # Not by Ray Train's list, which lags behind, and may be lost. Rank 0 looks: what is left of a killed group may
        # still write one.
        yield _localize_last(self.states, broadcast_object(_whole_states(self.states)))

    def report(self, metrics: dict[str, Any], copy: Callable[[], Save]) -> None:
        import ray.train
        from ray.train import CheckpointUploadMode

        if self.rank:
            ray.train.report(metrics)
            return
        # One at a time: a slow store must fill neither this node's disk nor its memory.
        self.wait()
        save = copy()
        self.leaving = Path(tempfile.mkdtemp(prefix="raydr-state-"))
        ray.train.report(
            metrics,
            checkpoint=ray.train.Checkpoint.from_directory(self.leaving),
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            checkpoint_upload_fn=partial(self._keep, save),
        )

    def kept(self) -> bool:
        if self.failure is not None:
            raise self.failure
        return self.leaving is None or not self.leaving.exists()

    def wait(self) -> None:
        while not self.kept():
            time.sleep(_LOOK_S)

    def _keep(self, save: Save, checkpoint: Checkpoint, name: str) -> Checkpoint:
        """Write a state to Ray Train's storage, in a thread of Ray's."""
        import ray.train

        try:
            publish_files(self.states / name, save, last=PROGRESS)
        except Exception as error:
            self.failure = error
            raise
        finally:
            shutil.rmtree(checkpoint.path)
        storage = self.context.get_storage()
        return ray.train.Checkpoint(storage.build_checkpoint_path_from_name(name), storage.storage_filesystem)


def _state_names(states: Folder) -> list[str]:
    """Of the states, whole or not, from the first to the last; other files beside them are none."""
    return sorted({name.split("/")[0] for name in states.files() if "/" in name})


def _whole_states(states: Folder) -> list[str]:
    return [name for name in _state_names(states) if states.exists(f"{name}/{PROGRESS}")]


def _localize_last(states: Folder, names: list[str]) -> Path | None:
    return Path((states / names[-1]).localize_all()) if names else None


def checkpoint_folder(output: Folder) -> Folder:
    """Where the checkpoints of an artefact that is being trained lie, given where that goes."""
    return Folder(f"{output.url.rstrip('/')}.training")
