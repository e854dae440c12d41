"""Searches in processes of their own: killed and resumed, with trials that are stopped and fail; nested groups."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from mlflow import MlflowClient

from raydr.config.run import RunConfig
from raydr.store.artifact import Artifact

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

#: Seconds between two looks at what a command has done so far.
POLL_S = 0.05

#: The last rate makes the gradients infinite.
GRID = {
    "train.optimizer.learning_rate": {"grid": [1e-7, 3e-3, 1e25]},
    "train.loss.warmup_epochs": {"int": [1, 2]},
}


@pytest.fixture
def ray_dir() -> Iterator[str]:
    """A short path: sockets live in it."""
    with tempfile.TemporaryDirectory(prefix="rt-", ignore_cleanup_errors=True) as folder:
        yield folder


def write_files(folder: Path, data: Path, checkpoint: str, ray_dir: str, space: dict[str, Any], **train: Any) -> None:
    side = {"max_length": 32}
    config: dict[str, Any] = {
        "name": "e2e",
        "workdir": str(folder / "work"),
        "data": {"reader": {"name": "beir", "path": str(data)}, "part_rows": 60},
        "model": {"checkpoint": checkpoint, "query": side, "passage": side},
        "train": {
            "loss": {"name": "npc", "warmup_epochs": 1},
            "num_epochs": 4,
            "batch_size": 8,
            "dtype": "float32",
            "optimizer": {"learning_rate": 3e-3, "schedule": "constant"},
            "dev": {"random_passages": 60},
        }
        | train,
        "tracking": {"system_metrics": False},
        "ray": {"num_cpus": 2, "object_store_gib": 0.2, "temp_dir": ray_dir},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    (folder / "mine.yaml").write_text(yaml.safe_dump(space, sort_keys=False))


def tune(folder: Path, *more: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "raydr",
        "tune",
        str(folder / "run.yaml"),
        "--space",
        str(folder / "mine.yaml"),
        *more,
    ]


def finish(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


def book(folder: Path) -> dict[int, dict[str, Any]]:
    """The trials as far as they are written down."""
    found = [json.loads(path.read_text()) for path in (folder / "work/store/study").glob("*/trials/trial-*.json")]
    return {trial["number"]: trial for trial in found}


def over(trials: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {number: trial for number, trial in trials.items() if trial["status"] != "running"}


def test_a_search_is_killed_and_goes_on(beir_folder, tiny_checkpoint, tmp_path, ray_dir):
    space = {"space": GRID, "search": {"algorithm": "grid"}, "scheduler": {"grace_epochs": 3}}
    write_files(tmp_path, beir_folder, tiny_checkpoint, ray_dir, space | {"trials": {"max_failures": 0}})
    killed = subprocess.Popen(tune(tmp_path), stderr=subprocess.DEVNULL, start_new_session=True)
    while len(over(book(tmp_path))) < 2:
        assert killed.poll() is None, "the search ended before it could be killed"
        time.sleep(POLL_S)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    before = over(book(tmp_path))
    assert len(before) < 6

    resumed = finish(tune(tmp_path))
    assert resumed.returncode == 0, resumed.stderr
    trials = book(tmp_path)
    assert {number: trials[number] for number in before} == before
    tried = [(one["values"]["train.optimizer.learning_rate"], one["values"]["train.loss.warmup_epochs"])
             for _, one in sorted(trials.items())]  # fmt: skip
    assert tried == [(3e-3, 1), (1e-7, 1), (1e-7, 2), (3e-3, 2), (1e25, 1), (1e25, 2)]
    statuses = [trials[number]["status"] for number in range(6)]
    assert statuses[0] == statuses[3] == "finished"
    assert statuses[4:] == ["failed", "failed"]
    assert "the gradients are not finite" in trials[4]["error"]
    assert "stopped" in statuses[1:3]
    stopped = trials[1 + statuses[1:3].index("stopped")]
    assert [row["epoch"] for row in stopped["rows"]] == [1, 2, 3]

    search = Artifact.open(str(tmp_path / "work/tune/mine"), "study")
    search.verify()
    best = search.info["best"]
    assert best in (0, 3)
    chosen = RunConfig.load(search.folder.path("best.yaml"))
    assert chosen.train.loss.num_warmup_epochs == trials[best]["values"]["train.loss.warmup_epochs"]
    assert chosen.workdir == str(tmp_path / "work")
    # Only the best trial's model is kept, under a name, and nothing that a resume would need.
    kept = (tmp_path / "work/models/mine-best").resolve()
    assert [path for path in (tmp_path / "work/store/model").iterdir() if path.is_dir()] == [kept]
    # It is the model that its config trains by itself.
    same = finish([sys.executable, "-m", "raydr", "train", search.folder.path("best.yaml"), "--dry-run"])
    assert "nothing to make" in same.stderr
    assert set(pq.read_table(search.folder.path("trials.parquet"))["trial"].to_pylist()) == set(range(6))
    page = (tmp_path / "work/tune/mine/report.html").read_text()
    assert page.count("<img") >= 3
    assert "fANOVA" in page or "Not computed" in page

    client = MlflowClient(f"sqlite:///{tmp_path}/work/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("raydr").experiment_id], max_results=100)
    by_name = {run.info.run_name: run for run in runs}
    sweep = by_name["tune-mine"]
    nested = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == sweep.info.run_id]
    assert sorted(run.info.run_name for run in nested) == [f"trial-{number:03d}" for number in range(6)]
    assert by_name["trial-004"].info.status == "FAILED"
    history = client.get_metric_history(by_name["trial-000"].info.run_id, "score")
    assert {point.step for point in history} == {1, 2, 3, 4}
    files = {file.path for file in client.list_artifacts(sweep.info.run_id)}
    assert {"best.yaml", "trials.json", "trials.parquet", "report.html", "plots", "best-model"} <= files

    again = finish(tune(tmp_path))
    assert again.returncode == 0, again.stderr
    assert "nothing to make: everything is there" in again.stderr
    other = finish(tune(tmp_path, "--set", "train.batch_size=4"))
    assert other.returncode == 1, other.stderr
    assert "tune/mine: " in other.stderr
    assert "--again" in other.stderr


def test_trials_of_two_workers_run_ray_train_and_leave_nothing_behind(
    ray_local, beir_folder, tiny_checkpoint, tmp_path, ray_dir
):
    """One trial is stopped while its group runs: the group's CPUs must come back, or the next trial would wait.

    With another Ray on the machine, beside which Ray Train's own cleaner does not find its dashboard.
    """
    space = {
        "space": {"train.optimizer.learning_rate": {"grid": [1e-7, 2e-3]}},
        "search": {"algorithm": "grid"},
        "scheduler": {"grace_epochs": 2},
    }
    loss = {"loss": "nce", "num_epochs": 8, "num_workers": 2}
    write_files(tmp_path, beir_folder, tiny_checkpoint, ray_dir, space, **loss)
    result = finish(tune(tmp_path))
    assert result.returncode == 0, result.stderr
    assert "1 trial at a time, each with 2 Ray Train workers of 1 CPU: 2 of 2 CPU in use" in result.stderr
    trials = book(tmp_path)
    assert [trials[number]["status"] for number in range(3)] == ["finished", "stopped", "finished"]
    assert len(trials[1]["rows"]) < 8


def test_a_search_over_refreshes_is_killed_in_a_trial_and_goes_on(beir_folder, tiny_checkpoint, tmp_path, ray_dir):
    """The second trial learns next to nothing and is stopped after its first round."""
    space = {
        "objective": "refresh",
        "space": {"train.optimizer.learning_rate": {"grid": [1e-7, 3e-3]}},
        "search": {"algorithm": "grid"},
    }
    # Mining between rounds is what tests/graph looks at.
    loss = {"loss": "nce", "num_epochs": 2, "num_hard_negatives": 0}
    write_files(tmp_path, beir_folder, tiny_checkpoint, ray_dir, space, **loss)
    sections = {"refresh.num_rounds": 2, "refresh.measure": "RR@10", "encode.dtype": "float32"}
    more = [text for key, value in sections.items() for text in ("--set", f"{key}={value}")]
    killed = subprocess.Popen(tune(tmp_path, *more), stderr=subprocess.DEVNULL, start_new_session=True)
    while not book(tmp_path).get(0, {"rows": []})["rows"]:
        assert killed.poll() is None, "the search ended before it could be killed"
        time.sleep(POLL_S)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    [first] = (tmp_path / "work/store/model").glob("*/manifest.json")
    made = first.stat().st_mtime_ns

    resumed = subprocess.Popen(tune(tmp_path, *more), stderr=subprocess.PIPE, text=True)
    while book(tmp_path)[0]["status"] != "finished":
        assert resumed.poll() is None, "the search ended before its first trial"
        time.sleep(POLL_S)
    # The first round's model was not made again.
    assert first.stat().st_mtime_ns == made
    said = resumed.communicate(timeout=900)[1]
    assert resumed.returncode == 0, said
    assert "1 trial at a time, with 2 CPU for its steps" in said
    assert "goes on after round 1" in said
    trials = book(tmp_path)
    assert [tuple(trials[number]["values"].values()) for number in (0, 1)] == [(3e-3,), (1e-7,)]
    assert [(trials[number]["status"], len(trials[number]["rows"])) for number in (0, 1)] == [
        ("finished", 2),
        ("stopped", 1),
    ]
    assert "dev recall@5 (qrels)" in trials[0]["rows"][0]["metrics"]
    assert not (tmp_path / "work/store/index").exists() or not list(
        (tmp_path / "work/store/index").glob("*/manifest.json")
    )

    search = Artifact.open(str(tmp_path / "work/tune/mine"), "study")
    assert search.info["best"] == 0
    Artifact.open(str(tmp_path / "work/models/mine-best"), "model").verify()
    assert "raydr refresh with this file" in Path(search.folder.path("best.yaml")).read_text()
    assert "dev RR@10 by round" in (tmp_path / "work/tune/mine/report.html").read_text()
