"""Tracking: nested runs in a SQLite store, resuming, failures, and a server that is away."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import date
from io import BytesIO, TextIOWrapper
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any, cast

import mlflow
import numpy as np
import pytest
from alembic.util import CommandError
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from patience import PATIENCE_S, wait_until
from sentence_transformers import SentenceTransformer
from sqlalchemy.exc import OperationalError

from raydr.errors import ConfigError
from raydr.models.config import ModelConfig, SideConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.store.folder import Folder
from raydr.tracking import mlflow_writer
from raydr.tracking.tracker import (
    NullTracker,
    RunAddress,
    Store,
    Tracker,
    TrackerHandle,
    TrackingConfig,
    _Writer,
    open_run,
)

CONFIG = TrackingConfig(system_metrics=False)


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow takes seconds to make one."""
    folder, before = tmp_path_factory.mktemp("empty"), os.getcwd()
    mlflow_writer.Log(Store("", "raydr", Folder(str(folder)))).client()
    os.chdir(before)
    return folder / "mlflow.db"


@pytest.fixture
def here(empty_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is logged is written by this process: another one would import MLflow for every test."""
    # MLflow keeps what it has connected to by its URI, and these would be alike.
    monkeypatch.setattr(mlflow_writer.Log, "uri", property(lambda log: log.store.shown))
    shutil.copyfile(empty_database, tmp_path / "mlflow.db")
    logs: dict[Store, mlflow_writer.Log] = {}

    def send(writer: Any, command: str, address: RunAddress, *details: Any) -> None:
        log = logs.setdefault(writer.store, mlflow_writer.Log(writer.store))
        getattr(log, command)(address, *details)

    monkeypatch.setattr("raydr.tracking.tracker._Writer.send", send)
    before = mlflow.get_tracking_uri()
    yield
    mlflow.set_tracking_uri(before)


def client_of(workdir: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{workdir}/mlflow.db")


def run_of(workdir: Path, name: str) -> Any:
    client = client_of(workdir)
    experiment = client.get_experiment_by_name("raydr")
    return client.search_runs([experiment.experiment_id], f"tags.mlflow.runName = '{name}'")


def test_parent_stages_params_metrics_and_files(tmp_path: Path) -> None:
    picture = tmp_path / "plot.txt"
    picture.write_text("plot")
    with open_run(CONFIG, "trial", Folder(str(tmp_path)), {"config": "f1"}) as run:
        run.log_params({"train": {"loss": {"name": "rcl", "beta": 0.3}}, "seed": 1})
        with run.stage("train", {"dataset": "f2"}) as stage:
            stage.log_metrics({"loss": 2.0, "recall@20": 0.5}, step=1)
            stage.log_metrics({"loss": 1.0}, step=2)
            stage.log_artifact(picture, "plots")
            stage.log_text("hello", "notes/a.txt")
    experiment = client_of(tmp_path).get_experiment_by_name("raydr")
    assert experiment is not None
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    parent, stage_run = run_of(tmp_path, "trial")[0], run_of(tmp_path, "train")[0]
    assert parent.data.params == {"train.loss.name": "rcl", "train.loss.beta": "0.3", "seed": "1"}
    assert parent.info.status == stage_run.info.status == "FINISHED"
    assert stage_run.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert stage_run.data.tags["dataset"] == "f2"
    assert stage_run.data.metrics == {"loss": 1.0, "recall_20": 0.5}
    history = client_of(tmp_path).get_metric_history(stage_run.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(1, 2.0), (2, 1.0)]
    files = {file.name for file in (tmp_path / "mlflow-artifacts").rglob("*.txt")}
    assert files == {"plot.txt", "a.txt"}


@pytest.mark.usefixtures("here")
def test_same_stage_resumes_the_same_mlflow_run_and_another_does_not(tmp_path: Path) -> None:
    for _ in range(2):
        with open_run(CONFIG, "trial", Folder(str(tmp_path))) as run, run.stage("train", {"data": "a"}) as stage:
            stage.log_metrics({"loss": 1.0})
    with open_run(CONFIG, "trial", Folder(str(tmp_path))) as run, run.stage("train", {"data": "b"}):
        pass
    assert len(run_of(tmp_path, "trial")) == 1
    assert sorted(run.data.tags["data"] for run in run_of(tmp_path, "train")) == ["a", "b"]


@pytest.mark.usefixtures("here")
def test_nested_runs_may_overlap_and_end_each_in_its_own_way(tmp_path: Path) -> None:
    with open_run(CONFIG, "trial", Folder(str(tmp_path))) as run, run.stage("tune") as stage:
        first, second = stage.child("first", {"number": "1"}), stage.child("second")
        first.log_metrics({"score": 0.5}, step=1)
        second.end("FAILED")
        first.end("FINISHED")
    parent = run_of(tmp_path, "tune")[0]
    ended = [run_of(tmp_path, name)[0] for name in ("first", "second")]
    assert [run.info.status for run in ended] == ["FINISHED", "FAILED"]
    assert {run.data.tags["mlflow.parentRunId"] for run in ended} == {parent.info.run_id}
    assert ended[0].data.metrics == {"score": 0.5}


@pytest.mark.usefixtures("here")
def test_changed_param_of_a_resumed_run_is_kept_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 2):
        with open_run(CONFIG, "trial", Folder(str(tmp_path))) as run:
            run.log_params({"seed": seed})
    assert run_of(tmp_path, "trial")[0].data.params == {"seed": "1"}
    assert "first value of seed" in capsys.readouterr().err


@pytest.mark.usefixtures("here")
def test_exception_marks_stage_and_parent_failed(tmp_path: Path) -> None:
    def fail() -> None:
        with open_run(CONFIG, "trial", Folder(str(tmp_path))) as run, run.stage("train") as stage:
            stage.log_metrics({"loss": 7.0})
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail()
    assert run_of(tmp_path, "trial")[0].info.status == "FAILED"
    stage = run_of(tmp_path, "train")[0]
    assert (stage.info.status, stage.data.metrics) == ("FAILED", {"loss": 7.0})


@pytest.mark.usefixtures("here")
def test_worker_logs_into_the_run_of_a_pickled_handle(tmp_path: Path) -> None:
    with open_run(CONFIG, "trial", Folder(str(tmp_path))) as run, run.stage("train") as stage:
        handle = pickle.loads(pickle.dumps(stage.handle()))
        with handle.open() as worker:
            worker.log_metrics({"loss": 3.0}, step=4)
    assert run_of(tmp_path, "train")[0].data.metrics == {"loss": 3.0}


def test_sqlite_of_another_host_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handle = TrackerHandle(RunAddress(Store("", "raydr", Folder(str(tmp_path))), "trial"), "elsewhere")
    with handle.open() as worker:
        assert isinstance(worker, NullTracker)
    assert "elsewhere" in capsys.readouterr().err
    assert not (tmp_path / "mlflow.db").exists()


def test_a_dead_server_gives_one_warning_and_no_delay(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    # Taken, so that no other process listens there, and deaf.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        config = TrackingConfig(uri=f"http://127.0.0.1:{taken.getsockname()[1]}")
        with open_run(config, "trial", Folder(str(tmp_path))) as run, run.stage("train") as stage:
            run.log_params({"seed": 1})
            for step in range(2000):
                stage.log_metrics({"loss": 1.0}, step)
            stage.log_text("x", "x.txt")
            with stage.handle().open() as worker:
                worker.log_metrics({"loss": 1.0})
    assert " ".join(capfd.readouterr().err.split()).count("does not work") == 1


class FakeLog:
    """In the place of the one that writes to MLflow: fails so often, and keeps what it was told."""

    def __init__(self, *failures: Exception | None, client: Exception | None = None) -> None:
        self.store = STORE
        self.failures, self.no_client = list(failures), client
        self.connected = client is None
        self.done: list[tuple[str, str]] = []

    def client(self) -> None:
        if self.no_client is not None:
            raise self.no_client

    def text(self, address: RunAddress, text: str) -> None:
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure
        self.done.append((address.name, text))


STORE = Store("http://mlflow:5000", "raydr", Folder("/nowhere"))


def written(log: FakeLog, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What becomes of three texts."""
    for name in ("RETRY_S", "RETRY_AFTER_S", "GATHER_S"):
        monkeypatch.setattr(mlflow_writer, name, 0.0)
    commands: Queue[Any] = Queue()
    for text in "abc":
        commands.put(("text", RunAddress(STORE, "trial"), (text,)))
    commands.put(None)
    mlflow_writer.write_all(commands, cast(mlflow_writer.Log, log))
    return [text for _, text in log.done]


FULL = OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full"))


def test_a_full_disk_is_told_as_such_and_what_was_logged_meanwhile_is_sent_later(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    FULL.add_detail("raised as a result of Query-invoked autoflush")
    assert written(FakeLog(None, *[FULL] * 5), monkeypatch) == ["a", "b", "c"]
    log = capsys.readouterr().err
    assert "mlflow:5000 does not work (database or disk is full). The work goes on; entries are kept" in log
    assert log.count("warning") == 1


@pytest.mark.parametrize(
    "error", [KeyError("x"), ZeroDivisionError(), MlflowException("no", 1000), FileNotFoundError()]
)
def test_what_mlflow_refuses_for_its_own_sake_is_left_out(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever its class; what met another process once is tried a second time."""
    assert written(FakeLog(None, error, None, error, error), monkeypatch) == ["a", "b"]
    assert "this entry is left out" in capsys.readouterr().err


def test_a_database_that_cannot_be_opened_loses_what_is_logged_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mlflow_writer, "RETRY_AFTER_S", 1e9)
    log = FakeLog(client=CommandError("Can't locate revision identified by 'abc'"))
    commands: Queue[Any] = Queue()
    for command in (("text", RunAddress(STORE, "trial"), ("a",)), None):
        commands.put(command)
    mlflow_writer.write_all(commands, cast(mlflow_writer.Log, log))
    assert "Can't locate revision" in capsys.readouterr().err


def test_a_writer_that_cannot_start_or_dies_does_not_end_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for interpreter in ("/nowhere/python", shutil.which("false")):
        monkeypatch.setattr(sys, "executable", interpreter)
        with open_run(CONFIG, "trial", Folder(str(tmp_path))) as run, run.stage("train") as stage:
            for step in range(1000):
                stage.log_text("x" * 1000, f"{step}.txt")
        assert capsys.readouterr().err.count("The work goes on without it") == 1


def test_a_database_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verb that is killed while it is made leaves a folder in which the next verb makes it."""
    monkeypatch.chdir(tmp_path)
    log = mlflow_writer.Log(Store("", "raydr", Folder(str(tmp_path))))
    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(os, "replace", lambda *_: 1 / 0)
        log.client()
    assert not [path.name for path in tmp_path.iterdir() if "mlflow.db" in path.name]
    log.client()
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        assert database.execute("SELECT name, artifact_location FROM experiments").fetchall() == [
            ("Default", f"{tmp_path.as_uri()}/mlflow-artifacts/0")
        ]


def test_the_last_line_of_a_killed_verb_may_be_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    address, received = RunAddress(STORE, "trial", {"a": "b"}, RunAddress(STORE, "parent")), Queue[Any]()
    line = json.dumps(["text", asdict(address), "é", "a.txt"]).encode()
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(line + b"\n" + line[:-3])))
    mlflow_writer._receive(STORE, received)
    assert [received.get_nowait() for _ in range(2)] == [("text", address, ("é", "a.txt")), None]


def test_any_value_reaches_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, received = BytesIO(), Queue[Any]()
    writer = _Writer(Store("", "raydr", Folder(str(tmp_path))))
    writer.process = cast(Any, SimpleNamespace(stdin=sent))
    day: Any = date(2026, 1, 2)
    tracker = Tracker(writer, RunAddress(writer.store, "trial", {"day": day}), system_metrics=False)
    tracker.log_metrics({"loss": np.float32("nan")}, step=cast(int, np.int64(3)))
    tracker.log_params({"day": day, "number": np.int64(4)})
    tracker.set_tags({"day": day, "number": cast(str, np.int64(4))})
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(sent.getvalue())))
    mlflow_writer._receive(writer.store, received)
    [[_, address, ([[name, value, _, step]],)], params, tags] = [received.get_nowait() for _ in range(3)]
    assert (address.tags, name, np.isnan(value), step) == ({"day": "2026-01-02"}, "loss", True, 3)
    assert params[2] == tags[2] == ({"day": "2026-01-02", "number": "4"},)
    assert not writer.broken


def test_verbs_at_once_on_a_fresh_folder_make_one_database(tmp_path: Path) -> None:
    """None of them loses what it logs."""
    code = (
        "import sys; from raydr.tracking.tracker import *; from raydr.store.folder import Folder\n"
        "with open_run(TrackingConfig(system_metrics=False), sys.argv[1], Folder(sys.argv[2])) as run:\n"
        "    run.log_metrics({'x': 1.0})"
    )
    names = [f"verb-{at}" for at in range(3)]
    running = [
        subprocess.Popen([sys.executable, "-c", code, name, str(tmp_path)], stderr=subprocess.PIPE) for name in names
    ]
    assert [(process.communicate()[1], process.returncode) for process in running] == [(b"", 0)] * len(names)
    for name in names:
        [run] = run_of(tmp_path, name)
        assert (run.info.status, run.data.metrics) == ("FINISHED", {"x": 1.0})


def test_any_name_of_a_folder_will_do_and_a_verb_does_not_import_mlflow(tmp_path: Path) -> None:
    code = (
        "import sys; from raydr.tracking.tracker import *; from raydr.store.folder import Folder\n"
        "with open_run(TrackingConfig(), 'trial', Folder(sys.argv[1])) as run, run.stage('train') as stage:\n"
        "    stage.log_metrics({'x': 1.0})\n"
        "    run.log_text('hello', 'a.txt')\n"
        "print('mlflow' in sys.modules)"
    )
    workdir = tmp_path / "a?b=c%20d#e::f g;&@h:i*[1]'\"ü"
    command = [sys.executable, "-c", code, str(workdir)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (process.stdout, process.stderr) == ("False\n", "")
    assert [path.name for path in tmp_path.iterdir()] == [workdir.name]
    with sqlite3.connect(workdir / "mlflow.db") as database:
        assert database.execute("SELECT value FROM metrics WHERE key = 'x'").fetchall() == [(1.0,)]
    [file] = (workdir / "mlflow-artifacts").rglob("a.txt")
    assert file.read_text() == "hello"
    assert mlflow_writer.probe_tracking(Store("", "raydr", Folder(str(workdir)))) == ""


def test_switched_off_does_nothing(tmp_path: Path) -> None:
    with open_run(TrackingConfig(enabled=False), "trial", Folder(str(tmp_path))) as run, run.stage("train") as stage:
        stage.log_metrics({"loss": 1.0})
        with stage.handle().open() as worker:
            worker.log_params({"a": 1})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("here")
def test_system_metrics_are_sampled_while_a_stage_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.05")
    with open_run(TrackingConfig(), "trial", Folder(str(tmp_path))) as run, run.stage("train"):
        wait_until(
            lambda: any(name.startswith("system/cpu") for name in run_of(tmp_path, "train")[0].data.metrics),
            "the load is logged",
        )


def test_remote_working_folder_needs_a_uri() -> None:
    with pytest.raises(ConfigError, match=r"tracking\.uri"):
        Store.of(TrackingConfig(), Folder("memory://work"))


@pytest.mark.usefixtures("here")
def test_stages_side_by_side_lose_nothing(tmp_path: Path) -> None:
    """Threads make their runs and log into the parent at the same time."""
    names, start = [f"stage-{at}" for at in range(6)], threading.Barrier(6, timeout=PATIENCE_S)

    def work(name: str, run: Tracker) -> None:
        start.wait()
        with run.stage(name) as stage:
            stage.log_metrics({"x": 1.0})
            run.log_metrics({f"{name}/y": 1.0})
            run.set_tags({name: "there"})

    with open_run(CONFIG, "trial", Folder(str(tmp_path))) as run, ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(work, name, run) for name in names]:
            future.result()
    parent = run_of(tmp_path, "trial")[0]
    assert {name for name in names if parent.data.tags.get(name) == "there"} == set(names)
    assert set(parent.data.metrics) == {f"{name}/y" for name in names}
    assert [len(run_of(tmp_path, name)) for name in names] == [1] * len(names)


@pytest.mark.usefixtures("here")
def test_a_logged_model_is_loaded_registered_and_encodes_as_it_did(tmp_path: Path, tiny_checkpoint: str) -> None:
    config = ModelConfig(checkpoint=tiny_checkpoint, query=SideConfig(max_length=32), passage=SideConfig(max_length=32))
    DualEncoder.from_config(config).save(tmp_path / "model", build_tokenizers(config))
    with open_run(CONFIG, "trial", Folder(str(tmp_path))) as run:
        with run.stage("train", {"raydr.key": "k1"}) as stage:
            stage.log_model(Folder(str(tmp_path / "model")), "v1.5/trained", "retriever")
            stage.log_dataset("mine", "f" * 64, "/data/mine", "training")
        with run.stage("untrained", {"raydr.key": "k2"}):
            pass
        for key, value in (("k1", 0.5), ("k2", 0.25), ("nobody", 0.0)):
            run.log_measures(key, {"test/recall@20": value})
    # Two models are compared under one name, in the runs that made them.
    assert {name: run_of(tmp_path, name)[0].data.metrics for name in ("train", "untrained", "trial")} == {
        "train": {"test/recall_20": 0.5},
        "untrained": {"test/recall_20": 0.25},
        "trial": {},
    }
    client = client_of(tmp_path)
    [model] = client.search_logged_models([client.get_experiment_by_name("raydr").experiment_id])
    assert (model.name, str(model.status), model.model_type) == ("v1-5-trained", "READY", "retriever")
    assert [(metric.key, metric.value) for metric in model.metrics] == [("test/recall_20", 0.5)]
    [logged] = run_of(tmp_path, "train")
    [used] = logged.inputs.dataset_inputs
    assert (used.dataset.name, json.loads(used.dataset.source)) == ("mine", {"uri": "/data/mine"})
    expected = SentenceTransformer(str(tmp_path / "model")).encode(["red river"])
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    mlflow.set_tracking_uri(uri)
    served = [
        mlflow.pyfunc.load_model(place).predict(["red river"])
        for place in ("models:/retriever/1", model.model_uri, f"runs:/{logged.info.run_id}/{model.name}")
    ]
    np.testing.assert_allclose(served, [expected] * 3, rtol=1e-6)


def test_ctrl_c_at_a_terminal_does_not_reach_the_writer(tmp_path: Path) -> None:
    """Not while it starts either: it would print a traceback, and the verb that its tracking does not work."""
    with _Writer.using(Store("", "raydr", Folder(str(tmp_path)))) as writer:
        writer._start()
        assert writer.process is not None
        assert os.getpgid(writer.process.pid) == writer.process.pid != os.getpgrp()
    assert writer.process.returncode == 0


def test_a_thread_that_outlives_an_interrupted_verb_logs_nothing_and_says_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for begun in (True, False):
        with _Writer.using(Store("", "raydr", Folder(str(tmp_path)))) as writer:
            late = Tracker(writer, RunAddress(writer.store, "trial"), system_metrics=False)
            if begun:
                writer._start()
        late.log_metrics({"loss": 1.0})
        assert (writer.process is not None) == begun
    assert capfd.readouterr().err == ""
