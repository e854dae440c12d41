"""Training in one process without Ray Train: the same model, gone on with after a death, shared and taken-up states."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from training.harness import model_config, run_alone

from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.models.dual_encoder import DualEncoder
from raydr.stages.lone_worker import POPULATION, Alone, LoneMember, newest_state
from raydr.stages.shared_warmup import SharedWarmup
from raydr.stages.train import train
from raydr.stages.train_worker import _go_on
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder
from raydr.training.checkpoint import Progress, load_progress
from raydr.training.config import TrainConfig

SETTINGS: dict[str, Any] = {
    "loss": {"name": "npc", "warmup_epochs": 1},
    "pair_detection": {"num_random": 20},
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


def run_config(checkpoint: str, workdir: Path, **changes: Any) -> RunConfig:
    return RunConfig.parse(
        {
            "workdir": str(workdir),
            "data": {"reader": {"name": "beir", "path": "unused"}},
            "model": model_config(checkpoint).model_dump(),
            "train": SETTINGS | changes,
        }
    )


def fit(
    config: RunConfig, data: tuple[str, str], output: Path, watcher: Recorder, how: Alone | None = None
) -> Artifact:
    return train(config, Folder(data[1]), Folder(data[0]), Folder(str(output)), alone=how or Alone(), watcher=watcher)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return DualEncoder.load(folder).state_dict()


@pytest.mark.invariant
def test_a_lone_process_gives_the_same_model_also_after_a_death(tiny_data, tiny_checkpoint, tmp_path):
    config = run_config(tiny_checkpoint, tmp_path)
    dying, going_on = Recorder(dies_after=3), Recorder()
    with pytest.raises(KeyboardInterrupt):
        fit(config, tiny_data, tmp_path / "model", dying)
    artifact = fit(config, tiny_data, tmp_path / "model", going_on)
    assert dying.epochs == [1, 2, 3]
    assert going_on.messages[0].startswith("going on from epoch 4")
    assert [row["epoch"] for row in artifact.info["history"]] == [0, 1, 2, 3]
    artifact.verify()
    assert not (tmp_path / "model.training").exists()
    _, expected = run_alone(tiny_data, config.model, SETTINGS)
    for name, tensor in weights(tmp_path / "model").items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-7)


@pytest.mark.invariant
def test_a_longer_warm_up_goes_on_from_a_shorter_one_with_the_same_result(tiny_data, tiny_checkpoint, tmp_path):
    shared = {"share_warmup": [1, 2]}
    fit(run_config(tiny_checkpoint, tmp_path, **shared), tiny_data, tmp_path / "short", Recorder())
    assert [path.parent.name for path in (tmp_path / "warmups").rglob("progress.json")] == ["epoch-1"]
    longer = {"loss": {"name": "npc", "warmup_epochs": 2}}
    recorder = Recorder()
    fit(run_config(tiny_checkpoint, tmp_path, **shared, **longer), tiny_data, tmp_path / "long", recorder)
    assert recorder.messages[0].startswith("plain NCE up to epoch 1 is there")
    fit(run_config(tiny_checkpoint, tmp_path / "elsewhere", **longer), tiny_data, tmp_path / "alone", Recorder())
    for name, tensor in weights(tmp_path / "long").items():
        torch.testing.assert_close(tensor, weights(tmp_path / "alone")[name], rtol=1e-5, atol=1e-7)


def test_ranks_begin_with_the_epoch_that_rank_0_has_found(tmp_path, monkeypatch):
    """Another training may leave a state between two ranks' looks."""
    monkeypatch.setattr("raydr.training.collectives.broadcast_object", lambda value: 1)
    warmup = SharedWarmup(Folder(str(tmp_path)), TrainConfig.model_validate({"loss": {"name": "npc"}}))
    (tmp_path / "epoch-1").mkdir()
    resumed: list[Path] = []
    trainer = SimpleNamespace(resume=resumed.append)
    member = SimpleNamespace(last_state=nullcontext)
    _go_on(trainer, member, SimpleNamespace(tell=lambda message: None), warmup)
    assert resumed == [tmp_path / "epoch-1"]


def test_only_epochs_of_plain_nce_are_shared():
    def kept(**train: Any) -> set[int]:
        return SharedWarmup(Folder("memory://warm"), TrainConfig.model_validate(train)).kept

    assert kept(loss="nce", num_epochs=2, share_warmup=[1, 2, 3]) == {1, 2}
    assert kept(loss={"name": "npc", "warmup_epochs": 2}, share_warmup=[1, 3]) == {1, 2}
    # It detects with the untrained model, and its states carry the flags.
    assert kept(loss="nce", pair_detection={}, share_warmup=1) == set()
    assert kept(loss="npc", pair_detection={}, share_warmup=1) == {1}
    # It distils from its teacher from the first step on.
    assert kept(loss="distillation", share_warmup=1) == set()


def test_a_member_of_a_population_takes_up_another_ones_state_with_its_own_settings(
    tiny_data, tiny_checkpoint, tmp_path
):
    good = Recorder(dies_after=3)
    with pytest.raises(KeyboardInterrupt):
        fit(run_config(tiny_checkpoint, tmp_path), tiny_data, tmp_path / "good", good, Alone(population=True))
    state = newest_state(Folder(str(tmp_path / "good.training")) / POPULATION)
    assert state is not None
    assert load_progress(Path(state.root)).epoch == 3

    changed = run_config(tiny_checkpoint, tmp_path, optimizer={"learning_rate": 0.5})
    bad = Recorder()
    made = fit(changed, tiny_data, tmp_path / "bad", bad, Alone(population=True, start=state))
    assert bad.epochs[-1] == 4
    history = made.info["history"]
    assert [row["epoch"] for row in history] == [0, 1, 2, 3]
    # The same first three epochs; then steps at its own rate, which no network survives.
    losses = [row["metrics"]["loss"] for row in history]
    assert losses[2] < 1.0 < 1.5 < losses[3]


def test_what_a_member_was_before_it_took_up_another_ones_state_is_given_up(tiny_data, tiny_checkpoint, tmp_path):
    """Killed at once it goes on from the state it took up, and not from its own, which had come further."""
    states = {}
    for name, num_epochs in (("good", 1), ("own", 3)):
        # In working folders of their own: they share no warm-up.
        config = run_config(tiny_checkpoint, tmp_path / f"{name}-run")
        with pytest.raises(KeyboardInterrupt):
            fit(config, tiny_data, tmp_path / name, Recorder(dies_after=num_epochs), Alone(population=True))
        states[name] = Folder(str(tmp_path / f"{name}.training")) / POPULATION
    taken = newest_state(states["good"])
    assert taken is not None
    (Path(states["own"].root) / Path(taken.root).name / "teacher.safetensors").write_text("of another training")
    member = LoneMember(states["own"], torch.device("cpu"), Alone(population=True, start=taken))
    with member.last_state() as found:
        assert found is not None
        assert load_progress(found).epoch == 1
        assert {file.name for file in found.iterdir()} == {file.name for file in Path(taken.root).iterdir()}
    assert newest_state(states["own"]) == states["own"] / Path(taken.root).name


def test_a_lone_process_is_one_worker(tiny_data, tiny_checkpoint, tmp_path):
    with pytest.raises(ConfigError, match=r"cannot train as train.num_workers 2"):
        fit(run_config(tiny_checkpoint, tmp_path, num_workers=2), tiny_data, tmp_path / "model", Recorder())
