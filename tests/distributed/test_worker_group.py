"""Training in one process without Ray Train: the same model, gone on with after a death, and shared states."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from made_stage import make
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError
from ray.train import WorkerGroupError
from training.harness import model_config, run_alone

from raydr.artefacts.model import train
from raydr.distributed import worker_group
from raydr.distributed.pool import Pool, ThisProcess
from raydr.distributed.worker_group import MAX_LOST_GROUPS, _run_group, _trainer
from raydr.errors import TrainingError
from raydr.models.dual_encoder import DualEncoder
from raydr.models.precision import torch_threads
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder
from raydr.store.identity import Identity
from raydr.training.checkpoint import PROGRESS, Progress, state_name
from raydr.training.config import TrainConfig
from raydr.training.training import Training

SETTINGS: dict[str, Any] = {
    "loss": {"name": "npc", "warmup_epochs": 1},
    "pair_detection": {"detector": "gaussian", "margins": "model", "num_random": 20},
    "num_epochs": 4,
    "batch_size": 8,
    "optimizer": {"learning_rate": 1e-3},
    "dtype": "float32",
    "dev": {"random_passages": 30},
    "keep": "last",
}


@dataclass
class Recorder:
    """A watcher that remembers, and may die after an epoch."""

    dies_after: int = 99
    epochs: list[int] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def tell(self, message: str) -> None:
        self.messages.append(message)

    def step(self, progress: Progress, num_steps: int) -> None:
        assert num_steps == 5

    def epoch(self, progress: Progress) -> None:
        self.epochs.append(progress.epoch)
        if progress.epoch == self.dies_after:
            raise KeyboardInterrupt


def training_of(checkpoint: str, **changes: Any) -> Training:
    train = TrainConfig.model_validate(SETTINGS | changes)
    return Training(model=model_config(checkpoint), train=train, train_split="train", dev_split="dev", seed=0)


def fit(
    training: Training,
    data: tuple[str, str],
    output: Path,
    watcher: Recorder | None,
    pool: Pool | None = None,
) -> Artifact:
    # What plays no part in the result is none of the identity's business, as in the graph.
    content = training.differing_settings()
    inputs = Artifact.open(data[1], "dataset"), Artifact.open(data[0], "corpus")
    return make(
        output,
        "model",
        train,
        None,
        *inputs,
        identity=Identity(kind="model", config=content, inputs={"dataset": inputs[0].fingerprint}),
        pool=pool,
        training=training,
        watcher=watcher,
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return DualEncoder.load(folder).state_dict()


@pytest.mark.invariant
def test_a_lone_process_gives_the_same_model_also_after_a_death(tiny_data, tiny_checkpoint, tmp_path):
    training = training_of(tiny_checkpoint)
    dying, going_on = Recorder(dies_after=3), Recorder()
    with pytest.raises(KeyboardInterrupt):
        fit(training, tiny_data, tmp_path / "model", dying)
    artifact = fit(training, tiny_data, tmp_path / "model", going_on)
    assert dying.epochs == [1, 2, 3]
    assert going_on.messages[1].startswith("going on from epoch 4")
    assert [row["epoch"] for row in artifact.info["history"]] == [0, 1, 2, 3]
    artifact.verify()
    assert not (tmp_path / "model.training").exists()
    _, expected = run_alone(tiny_data, training.model, SETTINGS)
    for name, tensor in weights(tmp_path / "model").items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-7)


def test_only_epochs_of_plain_nce_are_shared():
    def shared(**train: Any) -> list[int]:
        return TrainConfig.model_validate(train).shared_epochs

    # After the last epoch there is nothing left to go on with.
    assert shared(loss="nce", num_epochs=3, share_warmup=[3, 2, 1]) == [1, 2]
    assert shared(loss={"name": "npc", "warmup_epochs": 2}, share_warmup=[1, 3]) == [1]
    # It detects with the untrained model, and its states carry the flags.
    assert shared(loss="nce", pair_detection={}, share_warmup=1) == []
    assert shared(loss="npc", pair_detection={}, share_warmup=1) == [1]
    # It reads its teacher from the first step on.
    assert shared(loss={"name": "npc", "warmup_epochs": 0}, share_warmup=1) == []


def test_a_process_alone_computes_with_all_its_threads(tiny_data, tiny_checkpoint, tmp_path):
    before = torch.get_num_threads()
    seen = []

    class Looking(Recorder):
        def step(self, progress: Progress, num_steps: int) -> None:
            seen.append(torch.get_num_threads())

    training = training_of(tiny_checkpoint, num_epochs=1, cpus_per_worker=1)
    with torch_threads(2):
        fit(training, tiny_data, tmp_path / "alone", Looking())
        assert set(seen) == {2}
        seen.clear()
        fit(training, tiny_data, tmp_path / "beside", Looking(), ThisProcess(num_cpus=1.5))
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("labels", [{}, {"market": "on-demand", "group": "train"}])
def test_workers_are_placed_by_the_labels_of_nodes(labels, tmp_path):
    settings = TrainConfig.model_validate({"num_workers": 2, "node_labels": labels})
    trainer = _trainer(lambda job, process: {}, None, "name", Folder(str(tmp_path)), settings)
    assert trainer.scaling_config.label_selector == (labels or None)
    assert trainer.scaling_config.num_workers == 2


class Spot:
    """A cluster in place of Ray's: a training fails as often as it is told, and nodes go."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        failures: list[tuple[Callable[[str], Exception], bool]],
        leaderless: bool = False,
        keeps: Folder | None = None,
    ) -> None:
        self.failures = failures
        self.keeps = keeps
        self.leaderless = leaderless
        self.gone: set[str] = set()
        self.num_tries = 0
        monkeypatch.setattr(worker_group, "start_ray", lambda: None)
        monkeypatch.setattr(worker_group, "_report_missing_resources", lambda settings: None)
        monkeypatch.setattr(worker_group, "_dead_nodes", lambda: set(self.gone))
        monkeypatch.setattr(worker_group, "_trainer", lambda *arguments: self)

    def fit(self) -> SimpleNamespace:
        self.num_tries += 1
        if self.leaderless:
            raise ActorDiedError
        if not self.failures:
            return SimpleNamespace(return_value={"weights": 1})
        error, takes_node = self.failures.pop(0)
        node = f"node {self.num_tries}"
        if takes_node:
            self.gone.add(node)
        if self.keeps is not None:
            self.keeps.write_json(f"{state_name(self.num_tries)}/{PROGRESS}", {})
        raise WorkerGroupError("a worker", {0: error(node)})

    def train(self, states: Path) -> dict[str, Any]:
        return _run_group(lambda job, process: {}, None, "name", Folder(str(states)), TrainConfig(), "the model")


def with_its_node(node: str) -> Exception:
    return RayActorError(error_msg=f"The actor died because its node has died. Node Id: {node}, ...")


def out_of_reach(node: str) -> Exception:
    return ActorUnavailableError("The actor is temporarily unavailable", None)


def out_of_memory(node: str) -> Exception:
    return RayActorError(error_msg="Worker exit type: NODE_OUT_OF_MEMORY, due to memory running low")


def test_the_loss_of_nodes_is_no_failure_of_a_training_however_often(monkeypatch, tmp_path):
    """Ray Train counts every node that goes without notice: the fourth ended a training on spot machines."""
    spot = Spot(monkeypatch, [(with_its_node, True), (out_of_reach, True)] * 3)
    assert spot.train(tmp_path) == {"weights": 1}
    assert spot.num_tries == 7


@pytest.mark.parametrize("keeps", [False, True])
def test_nodes_that_go_before_a_state_is_kept_end_a_training_some_time(keeps, monkeypatch, tmp_path):
    """A container that runs out of memory goes as a whole, so that its node is lost again and again."""
    states = Folder(str(tmp_path)) / "name" if keeps else None
    spot = Spot(monkeypatch, [(with_its_node, True)] * (MAX_LOST_GROUPS + 1), keeps=states)
    if keeps:
        assert spot.train(tmp_path) == {"weights": 1}
    else:
        with pytest.raises(TrainingError, match=r"10 groups in a row lost a node.*memory.*train\.cache_tokens"):
            spot.train(tmp_path)
        assert spot.num_tries == MAX_LOST_GROUPS


@pytest.mark.parametrize(
    ("error", "takes_node"),
    [
        (out_of_memory, False),
        (out_of_reach, False),
        # Meanwhile the cluster has taken away an idle node.
        (out_of_memory, True),
        (lambda node: ValueError("a bug"), True),
    ],
)
def test_what_is_no_loss_of_a_node_ends_it(error, takes_node, monkeypatch, tmp_path):
    spot = Spot(monkeypatch, [(with_its_node, True), (error, takes_node)])
    with pytest.raises(TrainingError, match="training the model broke off"):
        spot.train(tmp_path)
    assert spot.num_tries == 2


def test_the_death_of_the_controller_is_a_message(monkeypatch, tmp_path):
    with pytest.raises(TrainingError, match=r"training the model broke off: Ray Train's controller died.*same command"):
        Spot(monkeypatch, [], leaderless=True).train(tmp_path)


def test_without_a_watcher_the_console_is_told(tiny_data, tiny_checkpoint, tmp_path, capsys):
    training = training_of(tiny_checkpoint, num_epochs=2)
    fit(training, tiny_data, tmp_path / "model", None)
    log = capsys.readouterr().err
    assert "epoch 1: loss " in log
    assert "epoch 2: loss " in log
    assert "5 steps an epoch" in log


@dataclass
class OnAFullDisk(Recorder):
    """A watcher whose disk is full when the first epoch is over."""

    def epoch(self, progress: Progress) -> None:
        raise OSError(self.number, os.strerror(self.number))

    number: int = errno.ENOSPC


def test_a_full_disk_is_one_message_and_another_fault_is_a_bug(tiny_data, tiny_checkpoint, tmp_path):
    """Ray Train would begin a worker again that raised it, and come to the same."""
    training = training_of(tiny_checkpoint)
    with pytest.raises(TrainingError, match=r"No space left on device: free some space; the same command goes on"):
        fit(training, tiny_data, tmp_path / "full", OnAFullDisk())
    with pytest.raises(PermissionError):
        fit(training, tiny_data, tmp_path / "forbidden", OnAFullDisk(number=errno.EACCES))
