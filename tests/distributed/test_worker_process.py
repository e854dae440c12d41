"""How the state of a training is kept while it goes on; Ray Train itself is in ``test_train``."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray.train
import torch
from patience import PATIENCE_S
from ray.train import CheckpointUploadMode

from raydr.distributed.worker_group import RayTrainProcess
from raydr.errors import ArtifactError
from raydr.store.folder import Folder
from raydr.training.checkpoint import PROGRESS, Save, drop_all_but_last
from raydr.training.process import TorchProcess, last_state


class Training:
    """Has a number for its state, and a disk that writes when it is let."""

    def __init__(self) -> None:
        self.number = 0
        self.copied: list[int] = []
        self.disk = threading.Event()

    def copy(self) -> Save:
        number = self.number
        self.copied.append(number)

        def save(folder: Path) -> None:
            assert self.disk.wait(PATIENCE_S)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "state").write_text(str(number))
            (folder / PROGRESS).write_text("{}")

        return save

    def keep(self, process: TorchProcess | RayTrainProcess, number: int) -> None:
        self.number = number
        process.report({"global_step": number}, self.copy)


def broken() -> Save:
    def save(folder: Path) -> None:
        (folder / "state").write_text("half of it")
        raise OSError("the disk is gone")

    return save


@pytest.fixture
def training() -> Iterator[Training]:
    training = Training()
    yield training
    training.disk.set()


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[TorchProcess]:
    with closing(TorchProcess(Folder(str(tmp_path / "states")), torch.device("cpu"))) as process:
        yield process


def last(process: TorchProcess | RayTrainProcess) -> str | None:
    folder = last_state(process.states)
    return None if folder is None else (folder / "state").read_text()


def test_training_goes_on_while_its_state_is_written(lone: TorchProcess, training: Training) -> None:
    training.keep(lone, 1)
    assert not lone.kept()
    assert last(lone) is None
    # A step that is taken meanwhile is not in the state.
    training.number = 99
    training.disk.set()
    lone.wait()
    assert lone.kept()
    assert last(lone) == "1"


def test_the_next_state_waits_for_the_one_before(lone: TorchProcess, training: Training) -> None:
    training.keep(lone, 1)
    second = threading.Thread(target=training.keep, args=[lone, 2])
    second.start()
    second.join(0.2)
    # Nor is it copied before: there is memory for one.
    assert second.is_alive()
    assert training.copied == [1]
    training.disk.set()
    second.join(PATIENCE_S)
    lone.wait()
    assert training.copied == [1, 2]
    assert last(lone) == "2"
    assert lone.states.files() == [f"step-000000002/{name}" for name in (PROGRESS, "state")]


@pytest.mark.parametrize(
    "ask", [TorchProcess.kept, TorchProcess.wait, lambda process: process.report({"global_step": 3}, broken)]
)
def test_what_the_thread_raises_is_raised_in_the_training(
    ask: Callable[[TorchProcess], Any], lone: TorchProcess, training: Training
) -> None:
    training.disk.set()
    training.keep(lone, 1)
    lone.report({"global_step": 2}, broken)
    assert lone._writing is not None
    wait([lone._writing], PATIENCE_S)
    with pytest.raises(ArtifactError, match="the disk is gone"):
        ask(lone)
    # What was kept before is what the next start goes on from.
    assert last(lone) == "1"


def test_a_state_whose_writing_was_killed_is_none(lone: TorchProcess, training: Training) -> None:
    """Of a process that is killed in its thread: its progress file, which comes last, is not there."""
    training.disk.set()
    training.keep(lone, 1)
    lone.wait()
    with (lone.states / "step-000000002").publish("state") as path:
        Path(path).write_text("2")
    assert last(lone) == "1"
    training.keep(lone, 3)
    lone.wait()
    assert last(lone) == "3"
    assert {name.split("/")[0] for name in lone.states.files()} == {"step-000000003"}


def test_a_training_that_breaks_off_keeps_the_state_that_is_being_written(tmp_path: Path, training: Training) -> None:
    process = TorchProcess(Folder(str(tmp_path)), torch.device("cpu"))
    with pytest.raises(KeyboardInterrupt), closing(process):
        training.keep(process, 1)
        threading.Timer(0.05, training.disk.set).start()
        raise KeyboardInterrupt
    assert last(process) == "1"


class Reports:
    """Ray Train: has states written by a thread of its own."""

    storage_filesystem = None

    def __init__(self, storage: Path) -> None:
        self.storage = storage
        self.threads: list[threading.Thread] = []
        self.errors: list[Exception] = []

    def __call__(
        self,
        metrics: dict[str, Any],
        checkpoint: ray.train.Checkpoint,
        checkpoint_upload_mode: CheckpointUploadMode,
        checkpoint_upload_fn: Callable[[ray.train.Checkpoint, str], ray.train.Checkpoint],
        delete_local_checkpoint_after_upload: bool,
    ) -> None:
        assert checkpoint_upload_mode is CheckpointUploadMode.ASYNC
        # It would be the one that is kept.
        assert not delete_local_checkpoint_after_upload
        name = f"step-{metrics['global_step']:09d}"
        self.threads.append(threading.Thread(target=self._upload, args=[checkpoint_upload_fn, checkpoint, name]))
        self.threads[-1].start()

    def _upload(self, upload: Callable[..., ray.train.Checkpoint], checkpoint: Any, name: str) -> None:
        try:
            assert upload(checkpoint, "a name of its own").path == str(self.storage / name)
        except Exception as error:
            self.errors.append(error)

    def build_checkpoint_path_from_name(self, name: str) -> str:
        return str(self.storage / name)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Reports:
    (tmp_path / "node").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "node"))
    reports = Reports(tmp_path / "storage")
    monkeypatch.setattr(ray.train, "report", reports)
    return reports


@pytest.fixture
def process(reports: Reports) -> RayTrainProcess:
    process = object.__new__(RayTrainProcess)
    process.states = Folder(str(reports.storage))
    process.rank, process.written, process.failure = 0, threading.Event(), None
    process.written.set()
    process.context = SimpleNamespace(get_storage=lambda: reports)
    return process


def test_a_group_goes_on_while_the_state_is_written(
    process: RayTrainProcess, reports: Reports, training: Training
) -> None:
    training.keep(process, 1)
    assert not process.kept()
    training.number = 99
    training.disk.set()
    process.wait()
    assert (reports.storage / "step-000000001" / "state").read_text() == "1"


def test_one_state_lies_on_the_node_at_a_time(process: RayTrainProcess, reports: Reports, training: Training) -> None:
    training.keep(process, 1)
    second = threading.Thread(target=training.keep, args=[process, 2])
    second.start()
    second.join(0.3)
    assert training.copied == [1]
    training.disk.set()
    second.join(PATIENCE_S)
    process.wait()
    assert training.copied == [1, 2]
    assert sorted(path.name for path in reports.storage.iterdir()) == ["step-000000001", "step-000000002"]


def test_a_state_that_a_group_could_not_write_leaves_nothing_and_is_raised(
    process: RayTrainProcess, reports: Reports, tmp_path: Path
) -> None:
    process.report({"global_step": 1}, broken)
    reports.threads[0].join(PATIENCE_S)
    with pytest.raises(ArtifactError, match="the disk is gone"):
        process.kept()
    # Ray Train hears of it too, and starts the group again from the state before.
    assert ["the disk is gone" in str(error) for error in reports.errors] == [True]
    assert not list((tmp_path / "node").iterdir())
    assert not reports.storage.exists()


def test_a_group_goes_on_from_the_last_whole_state_whatever_ray_train_knows(
    process: RayTrainProcess, reports: Reports, training: Training
) -> None:
    """A kill that met Ray Train at writing its list cost the whole training."""
    assert last_state(process.states) is None
    training.disk.set()
    training.keep(process, 1)
    training.keep(process, 2)
    process.wait()
    with (process.states / "step-000000003").publish("state") as path:
        Path(path).write_text("half of it")
    with process.states.publish("list.json") as path:
        Path(path).write_text("{}")
    assert last_state(process.states) == reports.storage / "step-000000002"
    drop_all_but_last(process.states)
    assert sorted(path.name for path in reports.storage.iterdir()) == ["list.json", "step-000000002"]


def test_a_group_and_a_process_alone_go_on_from_each_others_states(
    lone: TorchProcess, process: RayTrainProcess, training: Training
) -> None:
    lone.states = process.states
    training.disk.set()
    for step, member in enumerate([lone, process, lone, process], start=1):
        training.keep(member, step)
        member.wait()
        assert {last(other) for other in (lone, process)} == {str(step)}
