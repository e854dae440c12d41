"""Jobs on a real Ray cluster of one node: sent by ``raydr submit``, followed, failed, stopped."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from patience import PATIENCE_S, wait_until

from cluster.ports import free_ports
from cluster.ray_process import environment, ray_head, wait_for
from raydr.store.artifact import Artifact

pytestmark = pytest.mark.cluster


@dataclass
class Cluster:
    address: str
    env: dict[str, str]
    project: Path

    def submit(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "raydr", "submit", "run.yaml", "--address", self.address, *arguments],
            cwd=self.project,
            env=self.env | env,
            capture_output=True,
            text=True,
            check=False,
        )

    def ask(self, path: str, method: str = "GET") -> Any:
        """Ray's own HTTP API: what others see of a job."""
        token = Path(self.env["RAY_AUTH_TOKEN_PATH"]).read_text()
        request = urllib.request.Request(
            f"{self.address}{path}", method=method, headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)


def takes_jobs(address: str, env: dict[str, str]) -> bool:
    """Whether a job can start: an agent comes up after the dashboard, and Ray waits ten seconds for it."""
    token = Path(env["RAY_AUTH_TOKEN_PATH"]).read_text()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/api/jobs/", b'{"entrypoint": "true"}', headers)
    try:
        urllib.request.urlopen(request, timeout=PATIENCE_S)
    except urllib.error.HTTPError as error:
        if "No available agent" in error.read().decode():
            return False
        raise
    return True


def answers(address: str) -> bool:
    try:
        urllib.request.urlopen(f"{address}/api/version", timeout=PATIENCE_S)
    except urllib.error.HTTPError as error:
        return error.code == 401
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, beir_folder: Path, tiny_checkpoint: str) -> Iterator[Cluster]:
    project = tmp_path_factory.mktemp("project")
    workdir = tmp_path_factory.mktemp("shared")
    side = {"max_length": 32}
    config = {
        "name": "job",
        "workdir": str(workdir),
        "data": {"reader": {"name": "beir", "path": str(beir_folder)}},
        "model": {"checkpoint": tiny_checkpoint, "query": side, "passage": side},
        "train": {"num_epochs": 1, "batch_size": 8, "dtype": "float32", "dev": {"random_passages": 30}},
        "encode": {"dtype": "float32"},
        "tracking": {"enabled": False},
    }
    (project / "run.yaml").write_text(yaml.safe_dump(config))
    token = project.parent / "token"
    token.write_text(uuid.uuid4().hex)
    gcs, dashboard, client, agent = free_ports(4)
    env = environment(token, RAYDR_TEST_SECRET="hush-hush")
    log = project.parent / "head.log"
    arguments = [
        *("--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", "--num-cpus=2", "--num-gpus=0"),
        *(f"--port={gcs}", f"--dashboard-port={dashboard}", f"--ray-client-server-port={client}"),
        *(f"--dashboard-agent-listen-port={agent}", "--object-store-memory=200000000"),
        # A socket's path is at most 107 characters long.
        f"--temp-dir=/tmp/rc-{uuid.uuid4().hex[:6]}",
    ]
    address = f"http://127.0.0.1:{dashboard}"
    with ray_head(arguments, env, log) as head:
        try:
            wait_for("the dashboard answers", lambda: answers(address), head, log)
            wait_for("a job can start", lambda: takes_jobs(address, env), head, log)
            yield Cluster(address, env, project)
        finally:
            temp_dir = arguments[-1].partition("=")[2]
    shutil.rmtree(temp_dir, ignore_errors=True)


def test_a_model_is_trained_and_the_corpus_encoded_by_a_job(cluster: Cluster) -> None:
    settings = ("--set", "encode.max_actors=1", "--require-env", "RAYDR_TEST_SECRET")
    made = cluster.submit("encode", "--submission-id", "first", *settings)
    assert made.returncode == 0, made.stdout + made.stderr
    assert "epoch 1: loss" in made.stdout
    assert "job first succeeded" in made.stderr
    assert f"ray job stop first --address {cluster.address}" in made.stderr
    seen = json.dumps(cluster.ask("/api/jobs/first"))
    assert "SUCCEEDED" in seen
    assert "RAYDR_TEST_SECRET" in seen
    assert "hush-hush" not in seen + made.stdout + made.stderr
    assert "120 passages" in made.stdout
    config = yaml.safe_load((cluster.project / "run.yaml").read_text())
    vectors = Artifact.open(f"{config['workdir']}/embeddings/trained/passages", "embeddings")
    assert vectors.info["num_rows"] == 120


def test_the_exit_status_of_a_job_comes_back(cluster: Cluster) -> None:
    failed = cluster.submit("why", "--", "nobody")
    assert failed.returncode == 1
    assert "nobody" in failed.stdout
    assert "Traceback" not in failed.stdout
    assert "failed (exit status 1)" in failed.stderr
    unset = cluster.submit("inspect", "--require-env", "RAYDR_NOT_SET")
    assert unset.returncode == 2
    assert "not set on this machine of the cluster: RAYDR_NOT_SET" in unset.stdout


def test_a_job_that_is_not_waited_for_can_be_stopped(cluster: Cluster) -> None:
    sent = cluster.submit(
        "train", "--no-wait", "--submission-id", "long", "--set", "train.num_epochs=500", "--", "--name", "x"
    )
    assert sent.returncode == 0, sent.stderr
    assert "epoch" not in sent.stdout
    assert cluster.ask("/api/jobs/long/stop", "POST") == {"stopped": True}

    def stopped() -> bool:
        status = cluster.ask("/api/jobs/long")["status"]
        assert status in ("PENDING", "RUNNING", "STOPPED")
        return bool(status == "STOPPED")

    wait_until(stopped, "the job is stopped", look_s=0.2)
    again = cluster.submit("train", "--submission-id", "long")
    assert again.returncode == 1
    assert "already exists" in again.stderr


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"RAY_AUTH_TOKEN": "0" * 32}, "it is not the token that this machine sends"),
        ({"RAY_AUTH_MODE": "disabled"}, "this machine sends none"),
    ],
)
def test_a_wrong_token_is_told(cluster: Cluster, env: dict[str, str], message: str) -> None:
    refused = cluster.submit("train", **env)
    assert refused.returncode == 1
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr
    assert env.get("RAY_AUTH_TOKEN", "hush-hush") not in refused.stderr
