"""Encoding on an autoscaling cluster: demand brings nodes up from none, idleness takes them down.

Ray's own provider of make-believe nodes stands in for a cloud; each node is a Ray of its own on this machine.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from cluster.ports import is_free
from cluster.ray_process import DEADLINE_S, environment, ray_head, wait_until
from raydr.store.artifact import Artifact

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

#: What the provider of make-believe nodes takes for granted: the head's port, the name of its node type, its id.
GCS_PORT = 6379
HEAD_TYPE = "ray.head.default"
HEAD_ID = "fffffffffffffffffffffffffffffffffffffffffffffffffff00000"


def cluster_config() -> dict[str, object]:
    """What a cluster.yaml is to a cloud: a head without CPUs, and up to two workers of two CPUs."""
    commands = ["initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray"]
    empty = {f"{name}_commands": [] for name in commands}
    worker = {"CPU": 2, "object_store_memory": 100 << 20}
    return {
        "cluster_name": "make-believe",
        "max_workers": 2,
        "upscaling_speed": 10,
        "idle_timeout_minutes": 0.1,
        "provider": {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "launch_multiple": True,
            "head_node_id": HEAD_ID,
        },
        "auth": {},
        "docker": {},
        "head_node_type": HEAD_TYPE,
        "available_node_types": {
            HEAD_TYPE: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "cpu": {"resources": worker, "node_config": {}, "min_workers": 0, "max_workers": 2},
        },
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
        **empty,
    }


@contextmanager
def watched_nodes(address: str, env: dict[str, str], seen: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Writes the number of alive nodes into a file whenever it changes."""
    script = Path(__file__).with_name("watch_nodes.py")
    with open(seen, "wb") as output:
        watch = subprocess.Popen([sys.executable, str(script), address], env=env, stdout=output)
        try:
            yield watch
        finally:
            watch.kill()
            watch.wait()


def counts(seen: Path) -> list[int]:
    # What Ray says to every driver lies between.
    return [int(line) for line in seen.read_text().splitlines() if line.isdecimal()]


def test_encoding_brings_nodes_up_from_none_and_idleness_takes_them_down(
    tmp_path: Path, beir_folder: Path, tiny_checkpoint: str
) -> None:
    if not is_free(GCS_PORT):
        pytest.skip(f"port {GCS_PORT}, which Ray's make-believe nodes need, is taken by another process")
    from ray._private.services import get_node_ip_address

    side = {"max_length": 16}
    raw = {
        "name": "autoscaled",
        "workdir": str(tmp_path / "work"),
        "data": {"reader": {"name": "beir", "path": str(beir_folder)}, "part_rows": 10},
        "model": {"checkpoint": tiny_checkpoint, "query": side, "passage": side},
        "encode": {"device": "cpu", "dtype": "float32", "min_actors": 1, "max_actors": 2},
        "tracking": {"enabled": False},
        "ray": {"capacity": {"CPU": 4}},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(raw))

    (tmp_path / "cluster.json").write_text(json.dumps(cluster_config()))
    (tmp_path / "token").write_text(uuid.uuid4().hex)
    autoscaler = {
        "RAY_FAKE_CLUSTER": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
    }
    env = environment(tmp_path / "token")
    temp_dir = Path(f"/tmp/rf-{uuid.uuid4().hex[:6]}")
    arguments = [
        *(f"--port={GCS_PORT}", f"--autoscaling-config={tmp_path / 'cluster.json'}", f"--temp-dir={temp_dir}"),
        *("--num-cpus=0", "--num-gpus=0", "--object-store-memory=100000000", "--include-dashboard=false"),
    ]
    address, log, seen = f"{get_node_ip_address()}:{GCS_PORT}", tmp_path / "head.log", tmp_path / "nodes"
    with ray_head(arguments, env | autoscaler, log) as head:
        wait_until("the head listens", lambda: not is_free(GCS_PORT), head, log)
        with watched_nodes(address, env, seen) as watch:
            wait_until("the head is alive", lambda: bool(counts(seen)), watch, log)
            command = [sys.executable, "-m", "raydr", "encode", str(tmp_path / "run.yaml"), "--model", "untrained"]
            encoded = subprocess.run(
                [*command, "--set", f"ray.address={address}"],
                env=env,
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
            assert encoded.returncode == 0, encoded.stderr + log.read_text()[-2000:]
            end = time.monotonic() + DEADLINE_S
            while counts(seen)[-1] > 1 and time.monotonic() < end:
                time.sleep(0.3)
    shutil.rmtree(temp_dir, ignore_errors=True)
    assert counts(seen)[0] == 1, "there were workers before there was work"
    assert max(counts(seen)) >= 2, "no worker came up"
    assert counts(seen)[-1] == 1, "idle workers were not given back"
    # Both at once: twelve parts keep them busy, and the capacity is stated.
    assert "2 encoders" in encoded.stderr
    assert "1 to 2 encoders" not in encoded.stderr
    vectors = Artifact.open(str(tmp_path / "work" / "embeddings" / "untrained" / "passages"), "embeddings")
    assert vectors.info["num_rows"] == 120
