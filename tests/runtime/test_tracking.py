"""Tracking: nested runs in a SQLite store, resuming, failures, and a server that is away."""

from __future__ import annotations

import json
import pickle
import socket
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlflow
import numpy as np
import pytest
from mlflow import MlflowClient
from patience import PATIENCE_S, wait_until
from sentence_transformers import SentenceTransformer
from sqlalchemy.exc import OperationalError

from raydr.errors import ConfigError
from raydr.models.config import ModelConfig, SideConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.runtime import mlflow_runs
from raydr.runtime.mlflow_runs import tracking_uri
from raydr.runtime.tracking import NullTracker, Tracker, TrackerHandle, open_run
from raydr.runtime.tracking_config import TrackingConfig
from raydr.store.folder import Folder

CONFIG = TrackingConfig(system_metrics=False)


def client_of(workdir: Path) -> MlflowClient:
    return MlflowClient(tracking_uri(CONFIG, Folder(str(workdir))))


def run_of(workdir: Path, name: str):
    client = client_of(workdir)
    experiment = client.get_experiment_by_name("raydr")
    return client.search_runs([experiment.experiment_id], f"tags.mlflow.runName = '{name}'")


def test_parent_stages_params_metrics_and_files(tmp_path: Path) -> None:
    picture = tmp_path / "plot.txt"
    picture.write_text("plot")
    with open_run(CONFIG, "trial", Folder(str(tmp_path)), {"config": "f1"}) as run:
        run.log_params({"train": {"loss": {"name": "rcl", "beta": 0.3}}, "seed": 1})
        with run.stage("train", {"dataset": "f2"}) as stage:
            stage.log_metrics({"loss": 2.0, "recall@20 (qrels)": 0.5}, step=1)
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
    assert [(one.step, one.value) for one in history] == [(1, 2.0), (2, 1.0)]
    files = {found.name for found in (tmp_path / "mlflow-artifacts").rglob("*.txt")}
    assert files == {"plot.txt", "a.txt"}


def test_same_stage_resumes_the_same_mlflow_run_and_another_does_not(tmp_path: Path) -> None:
    for _ in range(2):
        with open_run(CONFIG, "trial", Folder(str(tmp_path))) as run, run.stage("train", {"data": "a"}) as stage:
            stage.log_metrics({"loss": 1.0})
    with open_run(CONFIG, "trial", Folder(str(tmp_path))) as run, run.stage("train", {"data": "b"}):
        pass
    assert len(run_of(tmp_path, "trial")) == 1
    assert sorted(found.data.tags["data"] for found in run_of(tmp_path, "train")) == ["a", "b"]


def test_nested_runs_may_overlap_and_end_each_in_its_own_way(tmp_path: Path) -> None:
    with open_run(CONFIG, "trial", Folder(str(tmp_path))) as run, run.stage("tune") as stage:
        first, second = stage.child("first", {"number": "1"}), stage.child("second")
        first.log_metrics({"score": 0.5}, step=1)
        second.end("FAILED")
        first.end("FINISHED")
    parent = run_of(tmp_path, "tune")[0]
    ended = [run_of(tmp_path, name)[0] for name in ("first", "second")]
    assert [one.info.status for one in ended] == ["FINISHED", "FAILED"]
    assert {one.data.tags["mlflow.parentRunId"] for one in ended} == {parent.info.run_id}
    assert ended[0].data.metrics == {"score": 0.5}


def test_changed_param_of_a_resumed_run_is_kept_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 2):
        with open_run(CONFIG, "trial", Folder(str(tmp_path))) as run:
            run.log_params({"seed": seed})
    assert run_of(tmp_path, "trial")[0].data.params == {"seed": "1"}
    assert "first value of seed" in capsys.readouterr().err


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


def test_worker_logs_into_the_run_of_a_pickled_handle(tmp_path: Path) -> None:
    with open_run(CONFIG, "trial", Folder(str(tmp_path))) as run, run.stage("train") as stage:
        handle = pickle.loads(pickle.dumps(stage.handle()))
        with handle.open() as worker:
            worker.log_metrics({"loss": 3.0}, step=4)
    assert run_of(tmp_path, "train")[0].data.metrics == {"loss": 3.0}


def test_sqlite_of_another_host_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handle = TrackerHandle(f"sqlite:///{tmp_path}/mlflow.db", "some-run", "elsewhere")
    with handle.open() as worker:
        assert isinstance(worker, NullTracker)
    assert "elsewhere" in capsys.readouterr().err
    assert not (tmp_path / "mlflow.db").exists()


def test_dead_server_gives_one_warning_and_little_delay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(mlflow_runs, "RETRY_AFTER_S", float("inf"))
    calls = []
    original = mlflow_runs.Connection.client
    monkeypatch.setattr(mlflow_runs.Connection, "client", lambda self: calls.append(1) or original(self))
    # Taken, so that no other process listens there, and deaf.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        config = TrackingConfig(uri=f"http://127.0.0.1:{taken.getsockname()[1]}")
        with open_run(config, "trial", Folder(str(tmp_path))) as run, run.stage("train") as stage:
            run.log_params({"seed": 1})
            for step in range(2000):
                stage.log_metrics({"loss": 1.0}, step)
            stage.log_text("x", "x.txt")
            assert stage.handle().run_id == ""
            with stage.handle().open() as worker:
                worker.log_metrics({"loss": 1.0})
    assert " ".join(capsys.readouterr().err.split()).count("does not work") == 1
    assert len(calls) <= 2, "the circuit breaker must keep calls away from the dead server"


def test_a_full_disk_is_told_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def full(client: object) -> None:
        error = OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full"))
        error.add_detail("raised as a result of Query-invoked autoflush")
        raise error

    mlflow_runs.Connection(f"sqlite:///{tmp_path}/mlflow.db").call(full)
    assert "mlflow.db does not work (database or disk is full). The work goes on" in capsys.readouterr().err


def test_what_was_logged_while_the_server_was_away_is_sent_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = mlflow_runs.Connection.client
    away = True

    def client(self: mlflow_runs.Connection) -> MlflowClient:
        if away:
            raise OSError("connection refused")
        return original(self)

    monkeypatch.setattr(mlflow_runs.Connection, "client", client)
    monkeypatch.setattr(mlflow_runs, "RETRY_AFTER_S", 0.0)
    with open_run(CONFIG, "trial", Folder(str(tmp_path))) as run, run.stage("train") as stage:
        stage.log_params({"seed": 1})
        stage.log_metrics({"loss": 2.0}, step=1)
        away = False
    stage_run = run_of(tmp_path, "train")[0]
    assert (stage_run.data.params, stage_run.data.metrics) == ({"seed": "1"}, {"loss": 2.0})
    assert stage_run.data.tags["mlflow.parentRunId"] == run_of(tmp_path, "trial")[0].info.run_id


def test_switched_off_does_nothing(tmp_path: Path) -> None:
    with open_run(TrackingConfig(enabled=False), "trial", Folder(str(tmp_path))) as run, run.stage("train") as stage:
        stage.log_metrics({"loss": 1.0})
        with stage.handle().open() as worker:
            worker.log_params({"a": 1})
    assert list(tmp_path.iterdir()) == []


def test_system_metrics_are_sampled_while_a_stage_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.05")
    with open_run(TrackingConfig(), "trial", Folder(str(tmp_path))) as run, run.stage("train"):
        wait_until(
            lambda: any(name.startswith("system/cpu") for name in run_of(tmp_path, "train")[0].data.metrics),
            "the load is logged",
        )


def test_remote_working_folder_needs_a_uri() -> None:
    with pytest.raises(ConfigError, match=r"tracking\.uri"):
        tracking_uri(TrackingConfig(), Folder("memory://work"))


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
    remembered = json.loads((tmp_path / mlflow_runs.RUN_IDS).read_text())
    assert len(remembered) == 1 + len(names)


def test_a_second_run_of_other_settings_has_a_number(tmp_path: Path) -> None:
    for settings in ("f1", "f2", "f1"):
        with open_run(CONFIG, "mine, seed 3", Folder(str(tmp_path)), {"raydr.config": settings}) as run, run.stage("x"):
            pass
    named = {"mine, seed 3": "f1", "mine, seed 3 (2)": "f2"}
    assert {name: run_of(tmp_path, name)[0].data.tags["raydr.config"] for name in named} == named
    assert not run_of(tmp_path, "mine, seed 3 (3)")
    assert len(run_of(tmp_path, "x")) == 2


def test_a_logged_model_is_loaded_registered_and_encodes_as_it_did(tmp_path: Path, tiny_checkpoint: str) -> None:
    config = ModelConfig(checkpoint=tiny_checkpoint, query=SideConfig(max_length=32), passage=SideConfig(max_length=32))
    DualEncoder.from_config(config).save(tmp_path / "model", build_tokenizers(config))
    with open_run(CONFIG, "trial", Folder(str(tmp_path))) as run:
        with run.stage("train", {"raydr.key": "k1"}) as stage:
            stage.log_model(Folder(str(tmp_path / "model")), "v1.5/trained", "retriever")
            stage.log_dataset("mine", "f" * 64, "/data/mine", "training")
        with run.stage("untrained", {"raydr.key": "k2"}):
            pass
        for key, value in (("k1", 0.5), ("k2", 0.25), ("nobody's", 0.0)):
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
    assert [(one.key, one.value) for one in model.metrics] == [("test/recall_20", 0.5)]
    [logged] = run_of(tmp_path, "train")
    [used] = logged.inputs.dataset_inputs
    assert (used.dataset.name, json.loads(used.dataset.source)) == ("mine", {"uri": "/data/mine"})
    expected = SentenceTransformer(str(tmp_path / "model")).encode(["red river"])
    uri = tracking_uri(CONFIG, Folder(str(tmp_path)))
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    try:
        served = [
            mlflow.pyfunc.load_model(place).predict(["red river"])
            for place in ("models:/retriever/1", model.model_uri, f"runs:/{logged.info.run_id}/{model.name}")
        ]
    finally:
        mlflow.set_tracking_uri(before)
    np.testing.assert_allclose(served, [expected] * 3, rtol=1e-6)
