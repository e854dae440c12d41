"""Training through Ray Train: the artefact, reuse, resumption after a death."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
import torch
from artefacts import make_dataset
from kept_states import has_kept_state
from training.harness import model_config, run_alone

from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.schema import write_arrow
from raydr.errors import ArtifactError, ConfigError, DataError, FingerprintError, TrainingError
from raydr.models.dual_encoder import DualEncoder
from raydr.pages.noise_plots import parse_fit
from raydr.stages.train import save_untrained, train, training_key, warmup_folder
from raydr.stages.worker_group import CHECKPOINT_LIST
from raydr.store.artifact import Artifact, Building, Identity, begin
from raydr.store.folder import Folder, write_part

pytestmark = pytest.mark.ray

SETTINGS: dict[str, Any] = {
    "num_epochs": 2,
    "batch_size": 8,
    "num_hard_negatives": 2,
    "optimizer": {"learning_rate": 1e-3},
    "dtype": "float32",
    "dev": {"random_passages": 30},
    "keep": "last",
}


def run_config(checkpoint: str, workdir: Path, **train_settings: Any) -> RunConfig:
    model = model_config(checkpoint).model_dump()
    return RunConfig.parse(
        {
            "workdir": str(workdir),
            "data": {"reader": {"name": "beir", "path": "unused"}},
            "model": model,
            "train": SETTINGS | train_settings,
            "tracking": {"enabled": False},
        }
    )


def folders(data: tuple[str, str]) -> tuple[Folder, Folder]:
    return Folder(data[1]), Folder(data[0])


class Killer(threading.Thread):
    """Kills one training worker when the first checkpoint has been kept."""

    def __init__(self, state: Path) -> None:
        super().__init__(daemon=True)
        self.state = state
        self.killed: list[int] = []
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.wait(0.02):
            if has_kept_state(self.state):
                ours = psutil.Process().children(recursive=True)
                workers = [one for one in ours if "RayTrainWorker" in command_of(one)]
                if workers:
                    self.killed.append(workers[-1].pid)
                    self.strike(workers[-1])
                    return

    def strike(self, worker: psutil.Process) -> None:
        worker.kill()


def command_of(process: psutil.Process) -> str:
    """Its command line; empty if it has ended meanwhile."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


class Interrupter(Killer):
    """Presses Ctrl-C when the first checkpoint has been kept."""

    def strike(self, worker: psutil.Process) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def test_two_ray_workers_give_the_model_of_one_process(ray_local, tiny_data, tiny_checkpoint, tmp_path):
    config = run_config(tiny_checkpoint, tmp_path, num_workers=2)
    artifact = train(config, *folders(tiny_data), Folder(str(tmp_path / "model")))
    _, weights = run_alone(tiny_data, config.model, SETTINGS)
    model = DualEncoder.load(tmp_path / "model")
    for name, tensor in weights.items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-3, atol=2e-5)
    assert [row["epoch"] for row in artifact.info["history"]] == [0, 1]
    assert "dev RR@10" in artifact.info["history"][0]["metrics"]
    artifact.verify()
    assert not (tmp_path / "model.training").exists()

    again = train(config, *folders(tiny_data), Folder(str(tmp_path / "model")))
    assert again.fingerprint == artifact.fingerprint
    other = run_config(tiny_checkpoint, tmp_path, num_workers=1, optimizer={"learning_rate": 2e-3})
    with pytest.raises(FingerprintError, match=r"learning_rate: there 0\.001, asked 0\.002"):
        train(other, *folders(tiny_data), Folder(str(tmp_path / "model")))


@pytest.mark.invariant
def test_a_killed_worker_does_not_change_the_model(ray_local, tiny_data, tiny_checkpoint, tmp_path, capsys):
    changes = {"checkpoint_steps": 1, "num_epochs": 8, "loss": {"name": "npc", "warmup_epochs": 1}}
    changes |= {"pair_detection": {"num_random": 20}}
    config = run_config(tiny_checkpoint, tmp_path, num_workers=1, **changes)
    killer = Killer(tmp_path / "model.training")
    killer.start()
    artifact = train(config, *folders(tiny_data), Folder(str(tmp_path / "model")))
    killer.stop.set()
    assert killer.killed
    assert "going on from epoch" in capsys.readouterr().err
    _, weights = run_alone(tiny_data, config.model, SETTINGS | changes)
    model = DualEncoder.load(tmp_path / "model")
    for name, tensor in weights.items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-4, atol=1e-6)
    flags = artifact.parts("detection")
    assert len(flags) == 7
    for name, found in zip(flags, artifact.info["detections"], strict=True):
        table = pq.read_table(artifact.local(name))
        assert len(set(table["query_id"].to_pylist())) == 40
        assert name == f"detection/epoch-{found['epoch'] + 1:03d}.parquet"
        assert table["clean"].to_pylist().count(False) == pytest.approx(40 * found["share_flagged"])
        fit = parse_fit(found["fit"])
        if fit is not None and fit.bimodal:
            np.testing.assert_allclose(table["log_posterior"], fit.log_posterior(table["perplexity"].to_numpy()))
    assert list((tmp_path / "warmups").glob("*/epoch-1/progress.json"))


def test_ctrl_c_keeps_the_checkpoints_and_its_usual_meaning(ray_local, tiny_data, tiny_checkpoint, tmp_path, capsys):
    config = run_config(tiny_checkpoint, tmp_path, checkpoint_steps=1)
    output = Folder(str(tmp_path / "model"))
    handler = signal.getsignal(signal.SIGINT)
    interrupter = Interrupter(tmp_path / "model.training")
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        train(config, *folders(tiny_data), output)
    assert interrupter.killed
    assert signal.getsignal(signal.SIGINT) is handler
    assert list((tmp_path / "model.training").rglob("progress.json"))
    assert "going on" not in capsys.readouterr().err
    artifact = train(config, *folders(tiny_data), output)
    assert "going on from epoch" in capsys.readouterr().err
    assert [row["epoch"] for row in artifact.info["history"]] == [0, 1]


def test_a_list_of_checkpoints_that_broke_off_is_no_end(ray_local, tiny_data, tiny_checkpoint, tmp_path, capsys):
    config = run_config(tiny_checkpoint, tmp_path, checkpoint_steps=1)
    output = Folder(str(tmp_path / "model"))
    interrupter = Interrupter(tmp_path / "model.training")
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        train(config, *folders(tiny_data), output)
    [kept] = (tmp_path / "model.training").rglob(CHECKPOINT_LIST)
    kept.write_text(kept.read_text()[:40])
    artifact = train(config, *folders(tiny_data), output)
    assert "broke off while it was written: training starts again" in capsys.readouterr().err
    assert [row["epoch"] for row in artifact.info["history"]] == [0, 1]


def test_a_loss_that_is_not_finite_ends_training_without_retries(ray_local, tiny_data, tiny_checkpoint, tmp_path):
    config = run_config(tiny_checkpoint, tmp_path, optimizer={"learning_rate": 1e30, "clip_norm": None})
    with pytest.raises(TrainingError, match="gradients are not finite"):
        train(config, *folders(tiny_data), Folder(str(tmp_path / "model")))
    with pytest.raises(ArtifactError, match="not complete"):
        Artifact.open(Folder(str(tmp_path / "model")), "model")


def test_a_warm_up_is_shared_only_if_its_state_is_the_same(tiny_checkpoint, tmp_path):
    def place(**changes: Any) -> str:
        config = run_config(tiny_checkpoint, tmp_path, **changes)
        return warmup_folder(config, Identity(kind="model", config=training_key(config))).url

    assert place(loss={"name": "npc"}) == place(loss={"name": "npc", "use_consistency": False}) == place()
    assert place(loss={"name": "npc"}, pair_detection={"num_random": 7}) == place()
    assert place(optimizer={"learning_rate": 2e-3}) != place()
    # A state of keep: last has no copy of the best epoch, which keep: best would need later.
    assert place(keep="best") != place()


def test_what_could_not_be_trained_on_is_refused_before_anything_starts(tiny_data, tiny_checkpoint, tmp_path):
    dataset, corpus = folders(tiny_data)
    output = Folder(str(tmp_path / "model"))
    config = run_config(tiny_checkpoint, tmp_path, dev={"measure": "RR@@ten"})
    with pytest.raises(ConfigError, match=r"train\.dev\.measure: 'RR@@ten' is not a measure"):
        train(config, dataset, corpus, output)
    data = Dataset.open(dataset)
    tables = {name: {"train": getattr(data, name)("train").to_pylist()} for name in ("queries", "qrels")}
    tables["queries"]["dev"] = data.queries("dev").to_pylist()
    unjudged = make_dataset(tmp_path / "unjudged", Corpus.open(corpus), tables).artifact.folder
    config = run_config(tiny_checkpoint, tmp_path)
    with pytest.raises(DataError, match="split 'dev' of the data set at .* has no judgments"):
        train(config, unjudged, corpus, output)
    identity = Identity(kind="negatives", inputs={"dataset": data.fingerprint})
    with begin(str(tmp_path / "mined"), identity) as making:
        assert isinstance(making, Building)
        table = data.negatives("dev")
        name = "negatives/dev/part-00000.arrow"
        making.record(name, write_part(making.folder, name, len(table), lambda path: write_arrow(table, path)))
        mined = making.finish().folder
    with pytest.raises(DataError, match="are of split dev, the training is on 'train'"):
        train(config, dataset, corpus, output, mined)
    assert not output.exists()


def test_the_untrained_model_is_the_checkpoint(tiny_checkpoint, tmp_path):
    config = run_config(tiny_checkpoint, tmp_path)
    save_untrained(config, Folder(str(tmp_path / "untrained")))
    expected = DualEncoder.from_config(config.model, config.seed).state_dict()
    for name, tensor in DualEncoder.load(tmp_path / "untrained").state_dict().items():
        assert torch.equal(tensor, expected[name])
