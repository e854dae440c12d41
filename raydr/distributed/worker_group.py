"""The processes that train: this one alone, or a group of Ray Train with its retries, and errors in raydr's words.

The result is the same: the batch is global. A process alone starts at once and leaves nothing behind; its states lie
beside the artefact as a group's checkpoints do, and the same training goes on from them.
"""

from __future__ import annotations

import errno
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from raydr.console import say
from raydr.distributed.cluster import start_ray
from raydr.distributed.failures import root_cause
from raydr.distributed.member import (
    RayTrainProcess,
    SingleProcess,
    Worker,
    WorkerContext,
    checkpoint_folder,
    drop_all_but_last,
)
from raydr.distributed.pool import Pool
from raydr.errors import ConfigError, DataError, ModelError, TrainingError
from raydr.store.artifact import Building
from raydr.store.folder import Folder
from raydr.training.config import TrainConfig

if TYPE_CHECKING:
    from ray.train.torch import TorchTrainer

#: Ray Train's file beside the checkpoints that says which it knows.
CHECKPOINT_LIST = "checkpoint_manager_snapshot.json"


def trains_here(pool: Pool, settings: TrainConfig) -> bool:
    """Whether this process trains, alone."""
    return pool.here and settings.num_workers == 1


def run_workers(
    pool: Pool, worker: Worker, job: Any, making: Building, settings: TrainConfig, what: str
) -> dict[str, Any]:
    """Train, from the last state of an interrupted run if there is one.

    Args:
        pool: whether this process may train, if one worker is enough; else Ray Train does.
        worker: what each worker runs; a function of a module.
        job: its first argument.
        making: the artefact; the checkpoints are in a folder beside it until it is finished.
        settings: how many workers, with which resources, and how often they may die.
        what: is trained, for messages.

    Raises:
        TrainingError: training broke off; the same command goes on from the last state.
    """
    states = checkpoint_folder(making.folder)
    making.scratch.append(states)
    if trains_here(pool, settings):
        import torch

        device = torch.device("cuda" if settings.use_gpu else "cpu")
        with closing(SingleProcess(states / making.identity.fingerprint, device)) as member:
            outcome = _work(worker, job, member, pool.num_threads(settings.cpus_per_worker))
    else:
        outcome = _run_group(worker, job, making.identity.fingerprint, states, settings, what)
    if "error" in outcome:
        raise TrainingError(f"training {what}: {outcome['error']}")
    return outcome


def _work(worker: Worker, job: Any, member: WorkerContext, num_threads: int | None) -> dict[str, Any]:
    from raydr.models.precision import torch_threads

    with torch_threads(num_threads):
        # Returned and not raised: Ray Train would start the group again, and all workers would come to the same.
        try:
            return worker(job, member)
        except (ConfigError, DataError, ModelError, TrainingError) as error:
            return {"error": str(error)}
        except OSError as error:
            # The others of a group would wait for this one at the end of the epoch.
            if error.errno != errno.ENOSPC or member.num_ranks > 1:
                raise
            return {
                "error": f"{error.strerror or error}: free some space; the same command goes on from the last state"
            }


def _work_in_group(arguments: dict[str, Any]) -> dict[str, Any]:
    settings = arguments["settings"]
    # Beside a GPU a worker has the CPUs of its machine.
    num_threads = None if settings.use_gpu else max(1, int(settings.cpus_per_worker))
    return _work(arguments["worker"], arguments["job"], RayTrainProcess(arguments["states"]), num_threads)


def _run_group(worker: Worker, job: Any, name: str, states: Folder, settings: TrainConfig, what: str) -> dict[str, Any]:
    import ray

    start_ray()
    while True:
        _say_if_too_few(settings)
        forget_list(states / name)
        gone = _gone_nodes()
        try:
            with _interruptible():
                outcome: dict[str, Any] = _trainer(worker, job, name, states, settings).fit().return_value
        except ray.train.TrainingFailedError as error:
            if not (lost_a_worker(error) and _gone_nodes() - gone):
                raise TrainingError(
                    f"training {what} broke off: {root_cause(error)}. Checkpoints are in {states}; the same command "
                    "goes on from the last one"
                ) from error
            say(
                f"training {what}: a node is gone, which is no fault of the training; going on from the last checkpoint"
            )
        else:
            return outcome


def lost_a_worker(error: BaseException) -> bool:
    """Whether a worker's process died, rather than raised something, in a training that has failed."""
    from ray.exceptions import RayActorError

    failures = getattr(error, "worker_failures", {}).values()
    return any(isinstance(getattr(failure, "health_check_failure", failure), RayActorError) for failure in failures)


def _gone_nodes() -> set[str]:
    """Ids of the nodes that have been there."""
    import ray

    return {node["NodeID"] for node in ray.nodes() if not node["Alive"]}


def _trainer(worker: Worker, job: Any, name: str, states: Folder, settings: TrainConfig) -> TorchTrainer:
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    return TorchTrainer(
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
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    )


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


def forget_list(states: Folder) -> None:
    """Let Ray Train begin without its list of checkpoints; members know the last state themselves.

    It writes the list in place, so that a full disk, a kill or a machine that dies may leave half of it; a process
    alone may have gone on and removed what the list names. It starts with neither. States before the last go, which it
    would not remove any more.
    """
    drop_all_but_last(states)
    states.remove(CHECKPOINT_LIST)


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
