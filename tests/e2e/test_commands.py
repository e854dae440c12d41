"""Whole commands in processes of their own: the main job, a kill in the middle, broken input."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from kept_states import has_kept_state
from patience import PATIENCE_S
from small_runs import small_run

pytestmark = pytest.mark.e2e

#: Seconds between two looks at what a command has done so far.
POLL_S = 0.05
README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def config_file(beir_folder, tiny_checkpoint, tmp_path):
    config = small_run(
        beir_folder,
        tiny_checkpoint,
        tmp_path / "work",
        name="e2e",
        train={"num_epochs": 30, "checkpoint_steps": 3},
        tracking={"enabled": True},
    )
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def raydr(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "raydr", *arguments], capture_output=True, text=True, check=False, **options
    )


def test_the_main_job_is_interrupted_killed_resumed_and_reused(config_file, tmp_path):
    """Killed in training and run again, it goes on; that nothing differs then is what tests/chaos looks at."""
    # A process alone trains so quickly that there must be more to interrupt.
    here = ["--set", "train.num_epochs=80"]
    stopped = leave_in_training(config_file, tmp_path / "work", signal.SIGINT, here)
    assert stopped.returncode == 130
    assert "run the same command to resume" in stopped.stderr
    leave_in_training(config_file, tmp_path / "work", signal.SIGKILL, here)
    goes_on(config_file, here)
    again = raydr("quickstart", str(config_file), *here)
    assert "nothing to make" in again.stderr
    process = raydr("search", str(config_file), "river city mountain", "-k", "2")
    assert process.returncode == 0, process.stderr
    assert len(re.findall(r"^ +\d\. ", process.stdout, flags=re.MULTILINE)) == 2


@pytest.mark.ray
def test_the_main_job_is_killed_and_resumed_on_ray(config_file, tmp_path):
    # Ray has the training alone, which reads 40 queries 20 times; tests/artefacts have the rest, and Ctrl-C, on it.
    there = ["--set", "ray.in_process_rows=500", "--set", "tracking.enabled=false", "--set", "train.num_epochs=20"]
    leave_in_training(config_file, tmp_path / "work", signal.SIGKILL, there)
    goes_on(config_file, there)


def goes_on(config_file: Path, options: list[str]) -> None:
    resumed = raydr("quickstart", str(config_file), *options)
    assert resumed.returncode == 0, resumed.stderr
    assert "train-trained: was interrupted" in resumed.stderr
    assert "corpus: new" not in resumed.stderr
    assert re.search(r"going on from epoch \d+, step \d+", resumed.stderr)


def leave_in_training(
    config_file: Path, workdir: Path, how: signal.Signals, options: list[str]
) -> subprocess.CompletedProcess[str]:
    """The main job, sent a signal as soon as its training has kept another state."""
    command = [sys.executable, "-m", "raydr", "quickstart", str(config_file), *options]
    log_file, models = workdir.with_name("log"), workdir / "store" / "model"
    with open(log_file, "w") as log:
        job = subprocess.Popen(command, stderr=log, start_new_session=True)
        started = time.time()
        try:
            while not any(has_kept_state(state, since=started) for state in models.glob("*.training")):
                assert job.poll() is None, f"the job ended before it could be stopped: {log_file.read_text()}"
                time.sleep(POLL_S)
            job.send_signal(how)
            job.wait(PATIENCE_S)
        finally:
            # Tests that are interrupted leave none behind.
            job.kill()
    assert how != signal.SIGKILL or job.returncode == -signal.SIGKILL
    return subprocess.CompletedProcess(command, job.returncode, "", log_file.read_text())


def test_another_setting_stops_with_1_and_says_which(config_file):
    few = ["--set", "train.num_epochs=1", "--set", "tracking.enabled=false"]
    assert raydr("train", str(config_file), *few).returncode == 0
    result = raydr("train", str(config_file), "--set", "tracking.enabled=false")
    assert result.returncode == 1
    assert "models/trained: training.train.num_epochs was 1, is 30" in result.stderr
    assert "Traceback" not in result.stderr


def test_bad_rows_end_a_command_with_file_and_line(config_file, beir_folder, tmp_path):
    broken = tmp_path / "broken"
    (broken / "qrels").mkdir(parents=True)
    for name in ("queries.jsonl", "qrels/train.tsv", "qrels/dev.tsv", "qrels/test.tsv"):
        (broken / name).write_bytes((beir_folder / name).read_bytes())
    lines = (beir_folder / "corpus.jsonl").read_text().splitlines()
    lines[6] = lines[6][:-5]
    (broken / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    result = raydr("prepare", str(config_file), "--set", f"data.reader.path={broken}")
    assert result.returncode == 1
    assert "corpus.jsonl:7" in result.stderr
    assert "data.max_bad_rows" in result.stderr
    assert "Traceback" not in result.stderr
