"""How a worker of Ray Train hands on its state; Ray Train itself is in ``test_train``."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path

import pytest
import ray.train
from patience import PATIENCE_S
from ray.train import CheckpointUploadMode

from raydr.stages.worker_group import RayTrainMember


class Reports:
    """What Ray Train was told; it copies a state when it is let."""

    def __init__(self) -> None:
        self.modes: list[CheckpointUploadMode] = []
        self.folders: list[Path] = []
        self.copied = threading.Event()

    def __call__(self, metrics, checkpoint, checkpoint_upload_mode, delete_local_checkpoint_after_upload):
        assert delete_local_checkpoint_after_upload
        folder = Path(checkpoint.path)
        assert (folder / "state").read_text() == str(metrics["global_step"])
        self.modes.append(checkpoint_upload_mode)
        self.folders.append(folder)
        threading.Thread(target=self._copy, args=[folder]).start()

    def _copy(self, folder: Path) -> None:
        self.copied.wait()
        shutil.rmtree(folder)


@pytest.fixture
def reports(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    reports = Reports()
    monkeypatch.setattr(ray.train, "report", reports)
    yield reports
    reports.copied.set()


@pytest.fixture
def member():
    member = object.__new__(RayTrainMember)
    member.rank, member.leaving = 0, None
    return member


def report(member: RayTrainMember, step: int, wait: bool) -> None:
    member.report({"global_step": step}, lambda folder: (folder / "state").write_text(str(step)) and None, wait)


def test_training_goes_on_while_a_state_of_the_middle_is_copied(member, reports):
    report(member, 1, wait=False)
    assert reports.modes == [CheckpointUploadMode.ASYNC]
    assert reports.folders[0].exists()


def test_one_state_lies_on_the_node_at_a_time(member, reports):
    report(member, 1, wait=False)
    second = threading.Thread(target=report, args=[member, 2, True])
    second.start()
    second.join(0.3)
    assert len(reports.folders) == 1
    reports.copied.set()
    second.join(PATIENCE_S)
    assert reports.modes == [CheckpointUploadMode.ASYNC, CheckpointUploadMode.SYNC]


def test_a_state_that_could_not_be_written_leaves_nothing(member, reports, tmp_path):
    def full(folder: Path) -> None:
        (folder / "state").write_text("half of it")
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        member.report({"global_step": 1}, full)
    assert not list(tmp_path.iterdir())
    assert not reports.modes
