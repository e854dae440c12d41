"""Processes that train: this process alone, or a group of Ray Train with retries and raydr's errors.

The result is the same, since the batch is global. A single process starts at once and leaves no files behind. Its
states lie beside the artefact, as a group's checkpoints do; each resumes from the other's.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from raydr.console import say
from raydr.distributed.cluster import start_ray
from raydr.distributed.failures import root_cause
from raydr.distributed.pool import Pool
from raydr.distributed.resources import nodes_with
from raydr.errors import ConfigError, DataError, DiskFullError, ModelError, TrainingError
from raydr.store.building import Building
from raydr.store.filesystems import is_full
from raydr.store.folder import Folder, publish_files
from raydr.training.checkpoint import (
    PROGRESS,
    Save,
    checkpoint_folder,
    drop_all_but_last,
    state_name,
    whole_states,
)
from raydr.training.config import DDP_SETTINGS, TrainConfig

# The import of PyTorch and Ray Train takes seconds, which a verb must not take.
if TYPE_CHECKING:
    import torch
    from ray.train import Checkpoint, UserCallback
    from ray.train.torch import TorchTrainer
    from torch import nn

    from raydr.training.process import Worker, WorkerProcess

#: Ray Train's file with its list of checkpoints, beside these.
CHECKPOINT_LIST = "checkpoint_manager_snapshot.json"
#: Groups in a row that lose a node and keep no state, after which a training ends.
MAX_LOST_GROUPS = 10


def trains_here(pool: Pool, settings: TrainConfig) -> bool:
    """Return whether this process trains alone."""
    return pool.here and settings.num_workers == 1


def run_workers(
    pool: Pool, worker: Worker, job: Any, making: Building, settings: TrainConfig, what: str
) -> dict[str, Any]:
    """Train, from the last state of an interrupted training if it exists.

    Args:
        pool: pool of the stage; Ray Train trains unless it is this process and the settings have a single worker.
        worker: function of a module, which each worker calls.
        job: first argument of the worker.
        making: artefact to make; the checkpoints are in a folder beside it until it is finished.
        settings: number of workers, their resources, and the number of deaths that they may have.
        what: name of the model in messages.

    Raises:
        TrainingError: the training failed; the same command continues from the last state.
    """
    states = checkpoint_folder(making.folder)
    making.scratch.append(states)
    if trains_here(pool, settings):
        import torch

        from raydr.training.process import TorchProcess

        device = torch.device("cuda" if settings.use_gpu else "cpu")
        with closing(TorchProcess(states / making.identity.fingerprint, device)) as process:
            outcome = _work(worker, job, process, pool.num_threads(settings.cpus_per_worker))
    else:
        outcome = _run_group(worker, job, making.identity.fingerprint, states, settings, what)
    if "error" in outcome:
        raise TrainingError(f"training {what}: {outcome['error']}")
    return outcome


def _work(worker: Worker, job: Any, process: WorkerProcess, num_threads: int | None) -> dict[str, Any]:
    import torch

    from raydr.models.precision import torch_threads

    # A caller in this process keeps its random numbers: a training seeds each step.
    devices = [process.device] if process.device.type == "cuda" else []
    with torch_threads(num_threads), torch.random.fork_rng(devices):
        # Returned, not raised: Ray Train would restart the group, and all workers would fail again.
        try:
            return worker(job, process)
        except (ConfigError, DataError, ModelError, TrainingError) as error:
            return {"error": str(error)}
        except OSError as error:
            if not is_full(error):
                raise
            failure = DiskFullError(f"{error.strerror}: free some space; the same command goes on from the last state")
        except DiskFullError as error:
            failure = error
        if process.num_ranks > 1:
            # Raised: the other workers wait for this worker until Ray Train ends them.
            raise failure
        return {"error": str(failure)}


class RayTrainProcess:
    """Worker of Ray Train; made in the worker.

    Args:
        states: folder in which Ray Train keeps the group's checkpoints.
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

        wrapped: nn.Module = prepare_model(module, parallel_strategy_kwargs=DDP_SETTINGS)
        return wrapped

    def has_notice(self) -> bool:
        import ray.train

        return ray.train.get_preemption_info() is not None

    def report(self, metrics: dict[str, Any], copy: Callable[[], Save]) -> None:
        import ray.train
        from ray.train import CheckpointUploadMode

        if self.rank:
            ray.train.report(metrics)
            return
        # A single state at a time: a slow store must fill neither this node's disk nor its memory.
        self.wait()
        storage, name, save = self.context.get_storage(), state_name(metrics["global_step"]), copy()
        self.written.clear()
        ray.train.report(
            metrics,
            checkpoint=ray.train.Checkpoint(storage.build_checkpoint_path_from_name(name), storage.storage_filesystem),
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            checkpoint_upload_fn=partial(self._keep, save, name),
            # The upload function writes the checkpoint to its final place.
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
        """Write a state among Ray Train's checkpoints, in a thread of Ray.

        A single process uses the same names, so that each continues from the other's state.
        """
        try:
            publish_files(self.states / name, save, last=PROGRESS)
        except Exception as error:
            self.failure = error
            raise
        finally:
            self.written.set()
        return checkpoint


def _work_in_group(arguments: dict[str, Any]) -> dict[str, Any]:
    process = RayTrainProcess(arguments["states"])
    return _work(arguments["worker"], arguments["job"], process, arguments["settings"].threads_per_worker)


def _run_group(worker: Worker, job: Any, name: str, states: Folder, settings: TrainConfig, what: str) -> dict[str, Any]:
    import ray

    start_ray()
    num_lost = 0
    while True:
        _report_missing_resources(settings)
        remove_checkpoint_list(states / name)
        kept = whole_states(states / name)
        gone = _dead_nodes()
        try:
            with _interruptible():
                outcome: dict[str, Any] = _trainer(worker, job, name, states, settings).fit().return_value
        except ray.exceptions.ActorDiedError as error:
            # Its placement group would stay until this command ends, so another group might wait for ever.
            raise TrainingError(
                f"training {what} broke off: Ray Train's controller died. It runs on this command's machine, which may "
                f"be out of memory. Checkpoints are in {states}; the same command goes on from the last one"
            ) from error
        except ray.train.TrainingFailedError as error:
            if isinstance(full := getattr(error, "controller_failure", None), DiskFullError):
                raise TrainingError(f"training {what}: {full}") from None
            if not lost_a_node(error, gone, _dead_nodes()):
                raise TrainingError(
                    f"training {what} broke off: {root_cause(error)}. Checkpoints are in {states}; the same command "
                    "goes on from the last one"
                ) from error
            num_lost = num_lost + 1 if whole_states(states / name) == kept else 0
            if num_lost == MAX_LOST_GROUPS:
                raise TrainingError(
                    f"training {what} broke off: {num_lost} groups in a row lost a node before they kept a state. "
                    "The memory of the nodes may be too small (train.cache_tokens saves some), or they go sooner "
                    "than train.checkpoint_minutes. The same command goes on from the last state"
                ) from error
            say(
                f"training {what}: a node is gone, which is no fault of the training; going on from the last checkpoint"
            )
        else:
            return outcome


def lost_a_node(error: BaseException, dead_before: Collection[str], dead: Collection[str]) -> bool:
    """Return whether a failed training has lost a worker because its node was lost.

    Ray names the node of a worker that died with it. For a worker out of reach it names no node: then any node that was
    lost meanwhile counts. A worker that ran out of memory has died alone, whichever idle nodes were lost.

    Args:
        error: a ``TrainingFailedError``.
        dead_before, dead: ids of the dead nodes before the training and now.
    """
    from ray.exceptions import ActorUnavailableError, RayActorError

    failures = [
        getattr(failure, "health_check_failure", failure) for failure in getattr(error, "worker_failures", {}).values()
    ]
    died = [str(failure) for failure in failures if isinstance(failure, RayActorError)]
    out_of_reach = any(isinstance(failure, ActorUnavailableError) for failure in failures)
    return any(node in message for node in dead for message in died) or (
        out_of_reach and bool(set(dead) - set(dead_before))
    )


def _dead_nodes() -> set[str]:
    """Return the ids of the lost nodes."""
    import ray

    return {node["NodeID"] for node in ray.nodes() if not node["Alive"]}


def _ends_on_full_disk() -> UserCallback:
    """Return the callback that ends a group whose disk is full, since another try would fail too."""
    from ray.train import UserCallback

    class EndsOnFullDisk(UserCallback):  # type: ignore[misc]
        def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
            for error in worker_exceptions.values():
                cause = getattr(error, "_base_exc", error)
                if isinstance(cause, DiskFullError):
                    raise cause

    return EndsOnFullDisk()


def _trainer(worker: Worker, job: Any, name: str, states: Folder, settings: TrainConfig) -> TorchTrainer:
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig

    from raydr.distributed.elastic import GroupTrainer

    return GroupTrainer(
        _work_in_group,
        train_loop_config={"worker": worker, "job": job, "settings": settings, "states": states.absolute() / name},
        torch_config=TorchConfig(backend="nccl" if settings.use_gpu else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=settings.num_workers,
            use_gpu=settings.use_gpu,
            resources_per_worker={"CPU": settings.cpus_per_worker} | ({"GPU": 1} if settings.use_gpu else {}),
            label_selector=settings.node_labels or None,
        ),
        run_config=RunConfig(
            name=name,
            storage_path=states.root if states.is_local else states.url,
            failure_config=FailureConfig(max_failures=settings.max_failures),
            callbacks=[_ends_on_full_disk()],
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    )


@contextmanager
def _interruptible() -> Iterator[None]:
    """Keep the usual meaning of Ctrl-C: Ray Train's handler would end the process, and outlive the training."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit:
        raise KeyboardInterrupt from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def remove_checkpoint_list(states: Folder) -> None:
    """Remove Ray Train's list of checkpoints; workers look up the last state themselves.

    Ray Train fails on a list that is damaged, or that names removed states. It writes the list in place, so that a full
    disk, a kill or a lost machine may leave half of it. A single process may have resumed and removed states that the
    list names. States before the last are removed here, since Ray Train does not do it without its list.
    """
    drop_all_but_last(states)
    states.remove(CHECKPOINT_LIST)


def _report_missing_resources(settings: TrainConfig) -> None:
    fewest, labels = settings.fewest_workers, settings.node_labels
    nodes = nodes_with(labels)
    where = f" on nodes with train.node_labels {labels}" if labels else ""
    needed = {"CPU": fewest * settings.cpus_per_worker, "GPU": fewest if settings.use_gpu else 0}
    for kind, amount in needed.items():
        available = sum(node["Resources"].get(kind, 0) for node in nodes)
        if amount > available:
            say(
                f"training asks for {amount:g} {kind}, Ray has {available:g} now{where}: waiting for the autoscaler; "
                "without one set train.num_workers or train.cpus_per_worker lower"
                + (", or train.node_labels={}" if labels else "")
            )
