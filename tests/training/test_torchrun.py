"""The core trains without Ray: alone, and as two processes of torchrun, to the weights of Ray Train."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from artefacts.test_train import SETTINGS, fit, training_of

from raydr.errors import RaydrError
from raydr.models.dual_encoder import DualEncoder
from raydr.store.folder import Folder
from raydr.training.__main__ import KINDS, Lines, TrainingFile, train_folder
from raydr.training.checkpoint import Progress
from raydr.training.training import OptionalInputs

#: Runs the module as ``python -m`` does, and names the packages that the core must not import.
_WITHOUT_RAY = """
import runpy, sys
try:
    runpy.run_module("raydr.training", run_name="__main__", alter_sys=True)
finally:
    imported = {"ray", "mlflow"} & set(sys.modules)
    assert not imported, imported
"""


@pytest.fixture
def folder(tiny_data: tuple[str, str], tmp_path: Path) -> Path:
    """A folder with links to the artefacts, as a working folder has them."""
    for name, target in zip(("corpus", "dataset"), tiny_data, strict=True):
        (tmp_path / name).symlink_to(target)
    return tmp_path


def write_settings(folder: Path, checkpoint: str, **changes: Any) -> None:
    model = training_of(checkpoint).model.model_dump(mode="json", exclude_unset=True)
    settings = {"model": model, "train": SETTINGS | {"use_gpu": False}} | changes
    (folder / "training.yaml").write_text(yaml.safe_dump(settings))


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, **options)


def train_here(folder: Path) -> dict[str, Any]:
    place = Folder(str(folder))
    return train_folder(place, TrainingFile.read(place))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return DualEncoder.load(folder).state_dict()


@pytest.mark.slow
@pytest.mark.invariant
def test_torchrun_trains_to_the_weights_of_ray_train(ray_local, folder, tiny_data, tiny_checkpoint):
    write_settings(folder, tiny_checkpoint)
    made = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "raydr.training", str(folder))
    assert made.returncode == 0, made.stderr
    assert "training begins, workers: 2" in made.stderr
    artifact = fit(training_of(tiny_checkpoint, num_workers=2), tiny_data, folder / "by-ray")
    theirs = weights(folder / "by-ray")
    for name, tensor in weights(folder / "model").items():
        assert torch.equal(tensor, theirs[name]), name
    outcome = json.loads((folder / "model/outcome.json").read_text())
    assert outcome["world_size"] == 2
    losses = [[row["metrics"]["loss"] for row in history] for history in (outcome["history"], artifact.info["history"])]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_one_process_trains_without_ray_and_does_not_train_twice(folder, tiny_checkpoint):
    write_settings(folder, tiny_checkpoint, train=SETTINGS | {"num_epochs": 1})
    made = run("-c", _WITHOUT_RAY, str(folder))
    assert made.returncode == 0, made.stderr
    assert "epoch 1: loss " in made.stderr
    assert not (folder / "model.training").exists()
    again = run("-c", _WITHOUT_RAY, str(folder))
    assert again.returncode == 1
    assert "is trained already" in again.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": {"negative": "mined"}}, "inputs has the unknown role 'negative'; allowed: dataset, corpus, neg"),
        ({"inputs": {"negatives": "mined"}}, "the negatives at .*mined does not exist"),
        ({"with_optimizer": True}, "was saved without its optimiser's state"),
        ({"trian": {}}, "trian: unknown key .*did you mean train"),
    ],
)
def test_wrong_settings_are_named(folder: Path, tiny_checkpoint: str, changes: dict[str, Any], message: str) -> None:
    write_settings(folder, tiny_checkpoint, **changes)
    with pytest.raises(RaydrError, match=message):
        train_here(folder)


def test_workers_that_cannot_share_a_batch_are_refused(folder: Path, tiny_checkpoint: str) -> None:
    """Also where torchrun sets their number, and not the file."""
    write_settings(folder, tiny_checkpoint)
    settings = TrainingFile.read(Folder(str(folder)))
    assert settings.training(torch.device("cpu"), 2).train.num_workers == 2
    with pytest.raises(RaydrError, match=r"training.yaml, with 99 workers,[^|]*share the 8 queries"):
        settings.training(torch.device("cpu"), 99)


def test_a_rank_without_a_file_ends_with_a_line(tmp_path: Path) -> None:
    environment = os.environ | {"WORLD_SIZE": "2", "RANK": "0"}
    made = run("-m", "raydr.training", str(tmp_path), env=environment)
    assert made.returncode == 1
    assert "does not exist" in made.stderr
    assert "Traceback" not in made.stderr


@pytest.mark.invariant
def test_a_training_that_was_interrupted_resumes_to_the_same_weights(
    folder: Path, tiny_checkpoint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(lines: Lines, progress: Progress) -> None:
        raise KeyboardInterrupt

    for output in ("whole", "resumed"):
        write_settings(folder, tiny_checkpoint, output=output)
        if output == "resumed":
            with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
                patched.setattr(Lines, "epoch", interrupted)
                train_here(folder)
        train_here(folder)
    assert "going on from epoch 2, step 0" in capsys.readouterr().err
    expected = weights(folder / "whole")
    for name, tensor in weights(folder / "resumed").items():
        assert torch.equal(tensor, expected[name]), name


def test_the_core_takes_every_input_of_a_training():
    optional = {field.name for field in fields(OptionalInputs)}
    assert optional == KINDS.keys() - {"dataset", "corpus"}
