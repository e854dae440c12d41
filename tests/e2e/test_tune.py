"""A search in processes of its own: killed, gone on with, confirmed, and asked for again."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient
from small_runs import small_run

from raydr.config.run import RunConfig
from raydr.store.artifact import Artifact

pytestmark = pytest.mark.e2e

#: Seconds between two looks at what a command has done so far.
POLL_S = 0.05

#: The first rate teaches next to nothing, the last one makes the gradients infinite.
SPACE: dict[str, Any] = {
    "space": {"train.optimizer.learning_rate": {"grid": [1e-7, 3e-3, 1e25]}},
    "search": {"algorithm": "grid"},
    "scheduler": {"grace_epochs": 3},
    # Side by side, one could be past the others before they are compared.
    "trials": {"max_failures": 0, "concurrency": 1},
    "confirm": {"num_seeds": 1},
}


@pytest.fixture
def files(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> Iterator[Path]:
    """A config and a space; Ray's folder has a short path, since sockets live in it."""
    train = {
        "loss": {"name": "npc", "warmup_epochs": 1},
        # Cross-fitting would train models before the search, of which the test waits for the first.
        "pair_detection": {"margins": "model"},
        "num_epochs": 4,
        "optimizer": {"learning_rate": 3e-4, "schedule": "constant"},
        "num_hard_negatives": 0,
    }
    with tempfile.TemporaryDirectory(prefix="rt-", ignore_cleanup_errors=True) as ray_dir:
        raw = small_run(
            beir_folder,
            tiny_checkpoint,
            tmp_path / "work",
            train=train,
            ray={"temp_dir": ray_dir},
            tracking={"enabled": True, "system_metrics": False},
            evaluate={"measures": ["RR@10"], "answer_cutoffs": [], "bootstrap_samples": 100, "permutations": 100},
        )
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(raw))
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(SPACE, sort_keys=False))
        yield tmp_path


def raydr(verb: str, config: str | Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "raydr", verb, str(config), *more]


def finish(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def models(folder: Path) -> list[Path]:
    """The finished models of the working folder."""
    return [path.parent for path in (folder / "work/store/model").glob("*/manifest.json")]


def test_a_search_is_killed_goes_on_and_is_confirmed(files):
    tune = raydr("tune", files / "run.yaml", "--space", str(files / "mine.yaml"))
    log = files / "killed.log"
    with log.open("w") as stderr:
        killed = subprocess.Popen(tune, stderr=stderr, start_new_session=True)
    try:
        while not models(files):
            assert killed.poll() is None, f"the search ended before it could be killed: {log.read_text()}"
            time.sleep(POLL_S)
    finally:
        killed.kill()
    killed.wait()

    resumed = finish(tune)
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming a search that was interrupted" in resumed.stderr
    study = Artifact.open(str(files / "work/tune/mine"), "study")
    study.verify()
    trials = json.loads(Path(study.local("trials.json")).read_text())
    rates = [trial["values"]["train.optimizer.learning_rate"] for trial in trials]
    assert rates == [3e-4, 1e-7, 3e-3, 1e25]
    assert [trial["status"] for trial in trials] == ["finished", "stopped", "finished", "failed"]
    assert [row["epoch"] for row in trials[1]["rows"]] == [1, 2, 3]
    assert "the gradients are not finite" in trials[3]["error"]
    assert study.info["best"] == 2
    chosen = RunConfig.load(study.local("best.yaml"))
    assert chosen.train.optimizer.learning_rate == 3e-3
    assert chosen.workdir == str(files / "work")
    # The model of the best trial alone is kept, beside those of the confirmation, and nothing that a resume would need.
    kept = (files / "work/models/mine-best").resolve()
    assert kept in models(files)
    assert len(models(files)) == 3
    assert not list((files / "work/store").glob("warmup/*/manifest.json"))
    assert not list((files / "work/store").glob("*/*.training"))
    page = (files / "work/tune/mine/report.html").read_text()
    assert page.count("<img") == 1
    assert "Best against default on test" in page

    client = MlflowClient(f"sqlite:///{files}/work/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("raydr").experiment_id], max_results=100)
    by_name = {run.info.run_name: run for run in runs}
    sweep = by_name["tune-mine"]
    nested = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == sweep.info.run_id]
    assert {f"trial-{number:03d}" for number in range(4)} <= {run.info.run_name for run in nested}
    assert by_name["trial-003"].info.status == "FAILED"
    history = client.get_metric_history(by_name["trial-000"].info.run_id, "score")
    assert {point.step for point in history} == {1, 2, 3, 4}
    logged = {file.path for file in client.list_artifacts(sweep.info.run_id)}
    assert {"best.yaml", "trials.json", "report.html", "settings.png", "best-model"} <= logged
    assert "gain/test/RR_10" in sweep.data.metrics

    again = finish(tune)
    assert again.returncode == 0, again.stderr
    assert "nothing to make: all artefacts exist" in again.stderr
    # It is the model that its config trains by itself.
    same = finish(raydr("train", study.local("best.yaml"), "--dry-run"))
    assert "nothing to make" in same.stderr
    other = finish([*tune, "--set", "train.batch_size=4"])
    assert other.returncode == 1, other.stderr
    assert "tune/mine: " in other.stderr
    assert "train.batch_size" in other.stderr
    assert "--again" in other.stderr
