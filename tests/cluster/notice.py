"""Trains on two nodes, of which a cloud takes one back with notice and brings another; run by ``test_notice``.

    python -m tests.cluster.notice FOLDER CORPUS DATASET CHECKPOINT

It is a process of its own, since a process belongs to one Ray. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.execution.context import get_train_context

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.distributed import elastic, worker_group
from raydr.distributed.cluster import RayConfig, connected, quiet_ray_logs
from raydr.distributed.pool import Pool
from raydr.distributed.ray_pool import RayPool
from raydr.distributed.worker_group import run_workers
from raydr.models.config import ModelConfig
from raydr.store.artifact import Artifact
from raydr.store.building import Building
from raydr.store.folder import Folder
from raydr.training import trainer
from raydr.training.checkpoint import Progress, state_name, whole_states
from raydr.training.config import TrainConfig
from raydr.training.process import WorkerProcess
from raydr.training.run import TrainingJob, train_worker
from raydr.training.training import OptionalInputs, Training
from tests.made_stage import make
from tests.patience import wait_until

NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
#: Step after which the notice comes, in the second of four epochs of five steps; and seconds until the node is gone.
NOTICE_AFTER, SECONDS_LEFT = 6, 15
#: Step after which another node comes, in the third epoch, of which no state is kept yet; and that after its state.
JOIN_AFTER, NEXT_EPOCH = 12, 16
WANTED = "wanted"
TRAIN: dict[str, Any] = {
    "num_epochs": 4,
    "batch_size": 8,
    "optimizer": {"learning_rate": 1e-3},
    "dtype": "float32",
    "log_steps": 1,
    "keep": "last",
}


@dataclass(frozen=True)
class Cloud:
    """A watcher beside rank 0 that stops the training until it is begun again, when it has given notice of a node and a
    state is kept, and when another node is there and a state is kept.

    Args:
        gcs: address of the cluster.
        node: id of the node that goes.
        states: the folder of the training's states.
        folder: for what is to be told.
    """

    gcs: str
    node: str
    states: Folder
    folder: Path

    def tell(self, message: str) -> None:
        with open(self.folder / "messages", "a", encoding="utf-8") as file:
            file.write(f"{message}\n")

    def step(self, progress: Progress, num_steps: int) -> None:
        step = progress.global_step
        stopped, asked, resized = (self.folder / name for name in ("stopped", "asked", "resized"))
        if stopped.exists():
            if step == JOIN_AFTER and not asked.exists():
                asked.touch()
                wait_until((self.folder / WANTED).exists, "the group is to have the new node")
            if step == NEXT_EPOCH and not resized.exists():
                resized.touch()
                wait_until(lambda: False, "this process is ended")
            return
        if step == NOTICE_AFTER:
            self._give_notice()
        if step > NOTICE_AFTER and whole_states(self.states)[-1:] > [state_name(NOTICE_AFTER)]:
            stopped.write_text(str(step))
            wait_until(lambda: False, "this process is ended")

    def epoch(self, progress: Progress) -> None:
        """Nothing to do."""

    def _give_notice(self) -> None:
        reason = autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
        deadline_ms = int((time.time() + SECONDS_LEFT) * 1000)
        accepted, why = ray._raylet.GcsClient(address=self.gcs).drain_node(self.node, reason, "taken back", deadline_ms)
        assert accepted, why
        ours = get_train_context().preemption_context
        wait_until(lambda: ours.preemption_info is not None, "the notice comes to rank 0, which all workers ask")


_TRAINER = worker_group._trainer


def worker(job: TrainingJob, process: WorkerProcess) -> dict[str, Any]:
    trainer.NOTICE_S = 0.0
    return train_worker(job, process)


def main(folder: Path, corpus: str, dataset: str, checkpoint: str) -> None:
    quiet_ray_logs()
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        node = cluster.add_node(**NODE)
        threading.Thread(target=_bring_node, args=(cluster, folder / "asked"), daemon=True).start()
        with connected(RayConfig(address=cluster.address)):
            model = _train(cluster.address, node.node_id, folder, corpus, dataset, checkpoint)
            world_size = model.info["world_size"]
    finally:
        cluster.shutdown()
    messages = (folder / "messages").read_text().splitlines()
    facts = {"stopped": int((folder / "stopped").read_text()), "messages": messages, "world_size": world_size}
    sys.stdout.write(f"{json.dumps(facts)}\n")


def _bring_node(cluster: Cluster, asked: Path) -> None:
    wait_until(asked.exists, "rank 0 asks for a node")
    # A handler of signals, which Ray would set, belongs to the main thread.
    cluster._shutdown_at_exit = False
    cluster.add_node(**NODE)


class Observed(elastic.GroupSize):
    """Policy that leaves a file once it wants another size."""

    def make_decision_for_running_worker_group(self, worker_group_state: Any, worker_group_status: Any) -> Any:
        decision = super().make_decision_for_running_worker_group(worker_group_state, worker_group_status)
        if self.wanted_since is not None:
            (Path(self.states.root).parents[1] / WANTED).touch()
        return decision


def _look_often(*arguments: Any) -> TorchTrainer:
    """Return the trainer of a group that looks for new nodes each second, not each minute."""
    group = _TRAINER(*arguments)
    group.scaling_config.elastic_resize_monitor_interval_s = 1.0
    return group


def _train(gcs: str, node: str, folder: Path, corpus: str, dataset: str, checkpoint: str) -> Artifact:
    sides = {"query": {"max_length": 24}, "passage": {"max_length": 32}}
    training = Training(
        model=ModelConfig.model_validate({"checkpoint": checkpoint, **sides}),
        train=TrainConfig.model_validate({**TRAIN, "num_workers": [1, 2], "checkpoint_minutes": None}),
        train_split="train",
        dev_split="",
        seed=0,
    )

    def stage(making: Building, pool: Pool, data: Artifact, passages: Artifact) -> dict[str, Any]:
        states = Folder(f"{making.folder.root}.training") / making.identity.fingerprint
        cloud = Cloud(gcs, node, states, folder)
        job = TrainingJob(training, Dataset(data), Corpus(passages), OptionalInputs(), making.folder, cloud)
        worker_group._trainer = _look_often
        elastic.GroupTrainer.policy = Observed
        outcome = run_workers(pool, worker, job, making, training.train, "the dual encoder")
        making.record_files()
        return {"world_size": outcome["world_size"]}

    inputs = Artifact.open(dataset, "dataset"), Artifact.open(corpus, "corpus")
    return make(folder / "model", "model", stage, *inputs, pool=RayPool())


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
