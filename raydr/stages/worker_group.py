"""A group of Ray Train workers: its resources, its retries, and its errors in the words of raydr."""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from raydr.errors import TrainingError
from raydr.models.config import Dtype
from raydr.runtime.console import say
from raydr.stages.failures import root_cause
from raydr.stages.resources import cluster_capacity
from raydr.stages.tasks import fetch
from raydr.store.artifact import Building
from raydr.store.folder import Folder
from raydr.training.config import TrainConfig

if TYPE_CHECKING:
    import torch
    from torch import nn

#: What a worker runs: plain arguments in, the outcome out. An outcome ``{"error": message}`` ends training without
#: another try; whatever is raised makes Ray Train start the group again.
Worker = Callable[[dict[str, Any]], dict[str, Any]]


#: Ray Train's file beside the checkpoints that says which are whole.
CHECKPOINT_LIST = "checkpoint_manager_snapshot.json"


class Member(Protocol):
    """One of the processes that train together, or the only one."""

    rank: int
    num_ranks: int
    device: torch.device

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module as a training step calls it."""

    def last_state(self) -> AbstractContextManager[Path | None]:
        """A folder with the last state of this training that was kept, None if there is none."""

    def report(self, metrics: dict[str, Any], save: Callable[[Path], None]) -> None:
        """Keep the state that ``save`` writes; every member calls it the same number of times."""


class RayTrainMember:
    """A worker of Ray Train; made in the worker."""

    def __init__(self) -> None:
        import ray.train
        from ray.train.torch import get_device

        context = ray.train.get_context()
        self.rank: int = context.get_world_rank()
        self.num_ranks: int = context.get_world_size()
        self.device: torch.device = get_device()

    def wrap(self, module: nn.Module) -> nn.Module:
        from ray.train.torch import prepare_model

        wrapped: nn.Module = prepare_model(module)
        return wrapped

    @contextmanager
    def last_state(self) -> Iterator[Path | None]:
        import ray.train

        checkpoint = ray.train.get_checkpoint()
        if checkpoint is None:
            yield None
            return
        with checkpoint.as_directory() as folder:
            yield Path(folder)

    def report(self, metrics: dict[str, Any], save: Callable[[Path], None]) -> None:
        report_checkpoint(metrics, save)


def training_dtype(settings: TrainConfig, dtype: Dtype) -> tuple[str, str]:
    """The arithmetic and its reason, resolved on a worker of the kind that will train.

    Raises:
        TrainingError: a GPU is asked for, and Ray has none.
        ModelError: the device does not know that arithmetic.
    """
    import ray

    from raydr.models.precision import resolve_dtype

    device = "cuda" if settings.use_gpu else "cpu"
    if settings.use_gpu and cluster_capacity()["GPU"] < 1:
        raise TrainingError("train.use_gpu is set, but Ray has no GPU; unset it to train on CPUs")
    probe = ray.remote(num_cpus=1, num_gpus=1 if settings.use_gpu else 0)(resolve_dtype)
    resolved: tuple[str, str] = fetch(probe.remote(dtype, device))
    return resolved


def run_worker_group(
    worker: Worker, arguments: dict[str, Any], making: Building, settings: TrainConfig, what: str
) -> dict[str, Any]:
    """Run a worker function on all workers, from the last checkpoint of an interrupted run if there is one.

    Args:
        worker: what each worker runs.
        arguments: its arguments, plain values.
        making: the artefact; checkpoints lie beside it until :func:`forget_checkpoints`.
        settings: number of workers, their resources, restarts.
        what: what is trained, for messages.

    Returns:
        What rank 0's worker returned.

    Raises:
        TrainingError: training broke off; the same command goes on from the last checkpoint.
        KeyboardInterrupt: Ctrl-C; checkpoints are kept.
    """
    import ray
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    _say_if_too_few(settings)
    state = checkpoint_folder(making.folder)
    drop_torn_list(state / making.identity.fingerprint)
    trainer = TorchTrainer(
        worker,
        train_loop_config=arguments,
        torch_config=TorchConfig(backend="nccl" if settings.use_gpu else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=settings.num_workers,
            use_gpu=settings.use_gpu,
            resources_per_worker={"CPU": settings.cpus_per_worker} | ({"GPU": 1} if settings.use_gpu else {}),
        ),
        run_config=RunConfig(
            # The same name makes Ray Train go on from the last checkpoint of an interrupted run.
            name=making.identity.fingerprint,
            storage_path=state.root if state.is_local else state.url,
            failure_config=FailureConfig(max_failures=settings.max_failures),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    )
    try:
        with _interruptible():
            outcome: dict[str, Any] = trainer.fit().return_value
    except ray.train.TrainingFailedError as error:
        raise TrainingError(
            f"training {what} broke off: {root_cause(error)}. Checkpoints are in {state}; the same command goes on "
            "from the last one"
        ) from error
    if "error" in outcome:
        raise TrainingError(outcome["error"])
    return outcome


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C mean what it means elsewhere: Ray Train's handler would end the process, and stay when it is done."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit:
        raise KeyboardInterrupt from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def drop_torn_list(checkpoints: Folder) -> None:
    """Remove Ray Train's list of checkpoints if it broke off while it was written; training starts from the beginning.

    Ray Train writes the list in place, so that a disk that is full or a machine that dies leaves half of it, and does
    not start any more where it finds that.
    """
    if not checkpoints.exists(CHECKPOINT_LIST):
        return
    try:
        checkpoints.read_json(CHECKPOINT_LIST)
    except ValueError:
        checkpoints.remove(CHECKPOINT_LIST)
        say(f"the list of checkpoints in {checkpoints} broke off while it was written: training starts again")


def report_checkpoint(metrics: dict[str, Any], save: Callable[[Path], None]) -> None:
    """Report to Ray Train, on every rank; rank 0 also gives the checkpoint that ``save`` writes into a folder."""
    import ray.train

    if ray.train.get_context().get_world_rank():
        ray.train.report(metrics)
        return
    with tempfile.TemporaryDirectory(prefix="raydr-state-") as scratch:
        save(Path(scratch))
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(scratch))


def set_worker_threads(settings: TrainConfig) -> None:
    """Give PyTorch as many threads as the worker has CPUs."""
    import torch

    if not settings.use_gpu:
        torch.set_num_threads(max(1, int(settings.cpus_per_worker)))


def checkpoint_folder(output: Folder) -> Folder:
    """Where the checkpoints of an artefact that is being trained lie, given where that goes."""
    return Folder(f"{output.url.rstrip('/')}.training")


def _say_if_too_few(settings: TrainConfig) -> None:
    import ray

    fewest = settings.fewest_workers
    available = ray.cluster_resources()
    asked = {"CPU": fewest * settings.cpus_per_worker, "GPU": fewest if settings.use_gpu else 0}
    for kind, amount in asked.items():
        if amount > available.get(kind, 0):
            say(
                f"training asks for {amount:g} {kind}, Ray has {available.get(kind, 0):g} now: waiting for the "
                "autoscaler; on a single machine set train.num_workers or train.cpus_per_worker lower"
            )
