"""Training through Ray Train: the artefact, reuse, resumption after a death."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from made_artefacts import make_dataset
from made_stage import make
from patience import wait_until
from training.harness import model_config, run_alone

from artefacts.test_apply_verdicts import make_verdicts
from raydr.artefacts.model import save_untrained, train
from raydr.artefacts.ranker import train_cross_encoder
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.tables import write_arrow
from raydr.distributed.arithmetic import resolve_training_dtype
from raydr.distributed.pool import Pool, ThisProcess
from raydr.distributed.ray_pool import RayPool
from raydr.distributed.worker_group import CHECKPOINT_LIST
from raydr.errors import ArtifactError, ConfigError, DataError, TrainingError
from raydr.models.dual_encoder import DualEncoder
from raydr.models.precision import resolve_dtype
from raydr.noise.judge_models import ClassifierConfig
from raydr.pages.audit import parse_fit
from raydr.store.artifact import Artifact
from raydr.store.building import Building, begin
from raydr.store.folder import Folder, write_part
from raydr.store.identity import Identity
from raydr.training.config import TrainConfig
from raydr.training.reports import Watcher
from raydr.training.training import Training
from tests.artefacts.held import FullDisk, Held

SETTINGS: dict[str, Any] = {
    "num_epochs": 2,
    "batch_size": 8,
    "num_hard_negatives": 2,
    "optimizer": {"learning_rate": 1e-3},
    "dtype": "float32",
    "dev": {"random_passages": 30},
    "keep": "last",
}


def training_of(checkpoint: str, **train_settings: Any) -> Training:
    return Training(
        model=model_config(checkpoint),
        train=TrainConfig.model_validate(SETTINGS | train_settings),
        train_split="train",
        dev_split="dev",
        seed=0,
    )


def fit(
    training: Training,
    data: tuple[str, str],
    output: Path,
    pool: Pool | None = None,
    dataset: Artifact | None = None,
    negatives: Artifact | None = None,
    start: Artifact | None = None,
    watcher: Watcher | None = None,
    identity: Identity | None = None,
    **taught: Artifact,
) -> Artifact:
    return make(
        output,
        "model",
        train,
        None,
        dataset or Artifact.open(data[1], "dataset"),
        Artifact.open(data[0], "corpus"),
        negatives,
        start,
        pool=pool or RayPool(),
        training=training,
        **taught,
        watcher=watcher,
        identity=identity,
    )


def test_two_ray_workers_give_the_model_of_one_process(ray_local, tiny_data, tiny_checkpoint, tmp_path, capsys):
    training = training_of(tiny_checkpoint, num_workers=2)
    artifact = fit(training, tiny_data, tmp_path / "model")
    assert "epoch 2: loss " in capsys.readouterr().err
    _, weights = run_alone(tiny_data, training.model, SETTINGS)
    model = DualEncoder.load(tmp_path / "model")
    for name, tensor in weights.items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-3, atol=2e-5)
    assert [row["epoch"] for row in artifact.info["history"]] == [0, 1]
    assert "dev RR@10" in artifact.info["history"][0]["metrics"]
    artifact.verify()
    assert not (tmp_path / "model.training").exists()


def test_a_full_disk_ends_a_group_at_its_first_try(ray_local, tiny_data, tiny_checkpoint, tmp_path):
    (tmp_path / "tries").mkdir()
    watcher = FullDisk(tmp_path / "tries")
    with pytest.raises(TrainingError, match="the dual encoder: No space left on device: free some space"):
        fit(training_of(tiny_checkpoint, num_workers=2), tiny_data, tmp_path / "model", watcher=watcher)
    assert len(list((tmp_path / "tries").iterdir())) == 1


@pytest.mark.invariant
def test_a_killed_worker_does_not_change_the_model(ray_local, tiny_data, tiny_checkpoint, tmp_path):
    changes = {"checkpoint_steps": 1, "num_epochs": 3, "loss": {"name": "npc", "warmup_epochs": 1}}
    changes |= {"pair_detection": {"detector": "gaussian", "margins": "model", "num_random": 20}}
    training = training_of(tiny_checkpoint, num_workers=1, **changes)
    # When flags and a teacher are part of the state.
    held = Held(tmp_path, at=(1, 3))
    held.strike(tmp_path / "model.training", lambda worker: os.kill(worker, signal.SIGKILL))
    artifact = fit(training, tiny_data, tmp_path / "model", watcher=held)
    assert "going on from epoch 2, step" in held.output
    _, weights = run_alone(tiny_data, training.model, SETTINGS | changes)
    model = DualEncoder.load(tmp_path / "model")
    for name, tensor in weights.items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-4, atol=1e-6)
    flags = artifact.parts("detection")
    assert len(flags) == 2
    for name, detection in zip(flags, artifact.info["detections"], strict=True):
        table = pq.read_table(artifact.local(name))
        assert len(set(table["query_id"].to_pylist())) == 40
        assert name == f"detection/epoch-{detection['epoch'] + 1:03d}.parquet"
        assert table["clean"].to_pylist().count(False) == pytest.approx(40 * detection["share_flagged"])
        mixture = parse_fit(detection["fit"])
        if mixture is not None and mixture.bimodal:
            np.testing.assert_allclose(table["log_posterior"], mixture.log_posterior(table["margin"].to_numpy()))


def test_ctrl_c_keeps_the_checkpoints_and_its_usual_meaning(ray_local, tiny_data, tiny_checkpoint, tmp_path):
    training = training_of(tiny_checkpoint, num_workers=1, checkpoint_steps=2)
    handler = signal.getsignal(signal.SIGINT)
    held = Held(tmp_path, at=(0, 3))
    states = tmp_path / "model.training"

    def interrupt(worker: int) -> None:
        # Where the list is looked for that Ray Train must not start with.
        wait_until(lambda: list(states.glob(f"*/{CHECKPOINT_LIST}")), "Ray Train has its list")
        os.kill(os.getpid(), signal.SIGINT)

    held.strike(states, interrupt)
    with pytest.raises(KeyboardInterrupt):
        fit(training, tiny_data, tmp_path / "model", watcher=held)
    assert signal.getsignal(signal.SIGINT) is handler
    assert list(states.rglob("progress.json"))
    # As a kill leaves it that met Ray Train at writing it.
    (listed,) = states.glob(f"*/{CHECKPOINT_LIST}")
    listed.write_text('{"checkpoint_results": [{"checkpoint_dir')
    assert "going on" not in held.output
    artifact = fit(training, tiny_data, tmp_path / "model", watcher=held)
    assert "going on from epoch" in held.output
    assert [row["epoch"] for row in artifact.info["history"]] == [0, 1]


def test_a_broken_checkpoint_ends_training_without_retries(tiny_data, tiny_checkpoint, tmp_path):
    broken = Path(shutil.copytree(tiny_checkpoint, tmp_path / "broken"))
    weights = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    # What is not turned into this here, as in a worker of Ray, would be tried again there.
    with pytest.raises(TrainingError, match=r"cannot load model\.checkpoint .*broken") as caught:
        fit(training_of(str(broken)), tiny_data, tmp_path / "model", ThisProcess())
    assert "goes on" not in str(caught.value)


def test_a_loss_that_is_not_finite_ends_training_without_retries(ray_local, tiny_data, tiny_checkpoint, tmp_path):
    training = training_of(tiny_checkpoint, num_workers=1, optimizer={"learning_rate": 1e30, "clip_norm": None})
    with pytest.raises(TrainingError, match="gradients are not finite"):
        fit(training, tiny_data, tmp_path / "model")
    with pytest.raises(ArtifactError, match="not complete"):
        Artifact.open(Folder(str(tmp_path / "model")), "model")


def test_what_could_not_be_trained_on_is_refused_before_anything_starts(tiny_data, tiny_checkpoint, tmp_path):
    def refused(training: Training, error: type[Exception], message: str, **inputs: Any) -> None:
        with pytest.raises(error, match=message):
            fit(training, tiny_data, tmp_path / "model", ThisProcess(), **inputs)
        assert not (tmp_path / "model.training").exists()

    data, training = Dataset.open(tiny_data[1]), training_of(tiny_checkpoint)
    tables = {name: {"train": getattr(data, name)("train").to_pylist()} for name in ("queries", "qrels")}
    tables["queries"]["dev"] = data.queries("dev").to_pylist()
    unjudged = make_dataset(tmp_path / "unjudged", Corpus.open(tiny_data[0]), tables).artifact
    refused(training, DataError, "split 'dev' of the data set at .* has no judgments", dataset=unjudged)
    identity = Identity(kind="negatives", inputs={"dataset": data.fingerprint})
    with begin(str(tmp_path / "mined"), identity) as making:
        assert isinstance(making, Building)
        table = data.negatives("dev")
        name = "negatives/dev/part-00000.arrow"
        making.record(name, write_part(making.folder, name, len(table), lambda path: write_arrow(table, path)))
        mined = making.finish()
    refused(training, DataError, "are of split dev, the training is on 'train'", negatives=mined)
    going_on = training.model_copy(update={"with_optimizer": True})
    refused(
        going_on, ArtifactError, "was saved without its optimiser's state", start=make_untrained(training, tmp_path)
    )


def make_untrained(training: Training, folder: Path) -> Artifact:
    return make(folder / "untrained", "model", save_untrained, model=training.model, seed=training.seed)


def test_the_untrained_model_is_the_checkpoint(tiny_checkpoint, tmp_path):
    training = training_of(tiny_checkpoint)
    make_untrained(training, tmp_path).verify()
    expected = DualEncoder.from_config(training.model, training.seed).state_dict()
    for name, tensor in DualEncoder.load(tmp_path / "untrained").state_dict().items():
        assert torch.equal(tensor, expected[name])


def test_the_arithmetic_is_that_of_the_workers(pool: Pool):
    dtype, reason = resolve_training_dtype(pool, TrainConfig(), "float32")
    assert (dtype, bool(reason)) == ("float32", True)
    assert resolve_training_dtype(pool, TrainConfig(), "auto") == resolve_dtype("auto", "cpu")


def test_a_cross_encoder_is_the_same_in_both_pools(ray_local, tiny_data, tiny_checkpoint, tmp_path, capsys):
    settings = ClassifierConfig.model_validate(
        {
            "model": {"checkpoint": tiny_checkpoint, "max_length": 64},
            "batch_size": 8,
            "num_epochs": 2,
            "optimizer": {"learning_rate": 1e-3},
            "dtype": "float32",
        }
    )
    inputs = Artifact.open(tiny_data[1], "dataset"), Artifact.open(tiny_data[0], "corpus"), None, None
    losses = []
    for pool in (ThisProcess(), RayPool()):
        made = make(
            tmp_path / type(pool).__name__,
            "cross_encoder",
            train_cross_encoder,
            *inputs,
            pool=pool,
            settings=settings.model_copy(update={"num_hard_negatives": 0, "num_random_negatives": 2}),
            workers=TrainConfig(),
            split="train",
            seed=0,
        )
        made.verify()
        losses.append([row["metrics"]["loss"] for row in made.info["history"]])
        assert not Path(f"{made.folder.root}.training").exists()
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    with pytest.raises(ConfigError, match=r"num_hard_negatives is 1 and there are no candidates of split 'test'"):
        make(
            tmp_path / "without", "cross_encoder", train_cross_encoder, *inputs,
            settings=settings, workers=TrainConfig(), split="test", seed=0,
        )  # fmt: skip


def test_queries_with_a_flagged_pair_choose_no_epoch(tiny_data, tiny_checkpoint, tmp_path):
    """The first dev query alone counts: what is measured is what a dev split of that query would have."""
    corpus, data = Corpus.open(tiny_data[0]), Dataset.open(tiny_data[1])
    judged = data.qrels("dev").to_pylist()
    chosen = judged[0]["query_id"]
    actions = [(row["query_id"], row["passage_id"], "keep" if row["query_id"] == chosen else "drop") for row in judged]
    parts = {"00000-00000": actions}
    flags = make_verdicts(tmp_path / "flags", "pairs", data.artifact, "npc", parts, split="dev")
    tables = {
        "queries": {"train": data.queries("train").to_pylist(), "dev": data.queries("dev").to_pylist()[:1]},
        "qrels": {
            "train": data.qrels("train").to_pylist(),
            "dev": [row for row in judged if row["query_id"] == chosen],
        },
    }
    assert data.queries("dev")["query_id"][0].as_py() == chosen
    alone = make_dataset(tmp_path / "alone", corpus, tables).artifact
    training = training_of(tiny_checkpoint, num_hard_negatives=0, num_epochs=1)
    whole, flagged, expected = (
        fit(training, tiny_data, tmp_path / name, pool=ThisProcess(), dataset=dataset, **verdicts)
        for name, dataset, verdicts in (
            ("whole", None, {}), ("flagged", None, {"dev_verdicts": flags}), ("expected", alone, {}),
        )
    )  # fmt: skip
    measured = [made.info["history"][0]["metrics"]["dev RR@10"] for made in (whole, flagged, expected)]
    assert measured[1] == measured[2] != measured[0]
