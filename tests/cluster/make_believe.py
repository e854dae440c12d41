"""An autoscaling cluster of Ray's make-believe nodes: each node is a Ray of its own on this machine, started on demand
and given back when idle. A provider of Ray's stands in for a cloud."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster.ports import is_free
from cluster.ray_process import environment, ray_head, wait_for

#: What the provider takes for granted: the head's port, the name of its node type, its id.
GCS_PORT = 6379
HEAD_TYPE = "ray.head.default"
HEAD_ID = "fffffffffffffffffffffffffffffffffffffffffffffffffff00000"


@dataclass(frozen=True)
class Autoscaled:
    """A running cluster: its address, the variables of everyone who talks to it, and where its nodes are counted."""

    address: str
    env: dict[str, str]
    seen: Path
    log: Path

    def counts(self) -> list[int]:
        """The numbers of alive nodes that there have been, in order."""
        # What Ray says to every driver lies between.
        return [int(line) for line in self.seen.read_text().splitlines() if line.isdecimal()]


def _cluster_config(idle_minutes: float) -> dict[str, object]:
    """What a cluster.yaml is to a cloud: a head without CPUs, and up to two workers of two CPUs."""
    commands = ["initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray"]
    empty = {f"{name}_commands": [] for name in commands}
    worker = {"CPU": 2, "object_store_memory": 100 << 20}
    return {
        "cluster_name": "make-believe",
        "max_workers": 2,
        "upscaling_speed": 10,
        "idle_timeout_minutes": idle_minutes,
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
def autoscaled_cluster(folder: Path, idle_minutes: float, **variables: str) -> Iterator[Autoscaled]:
    """A head without CPUs that starts up to two nodes; ``variables`` are in the environment of all of them."""
    from ray._private.services import get_node_ip_address

    (folder / "cluster.json").write_text(json.dumps(_cluster_config(idle_minutes)))
    (folder / "token").write_text(uuid.uuid4().hex)
    autoscaler = {
        "RAY_FAKE_CLUSTER": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
    }
    env = environment(folder / "token", **variables)
    temp_dir = Path(f"/tmp/rf-{uuid.uuid4().hex[:6]}")
    arguments = [
        *(f"--port={GCS_PORT}", f"--autoscaling-config={folder / 'cluster.json'}", f"--temp-dir={temp_dir}"),
        *("--num-cpus=0", "--num-gpus=0", "--object-store-memory=100000000", "--include-dashboard=false"),
    ]
    cluster = Autoscaled(f"{get_node_ip_address()}:{GCS_PORT}", env, folder / "nodes", folder / "head.log")
    try:
        with ray_head(arguments, env | autoscaler, cluster.log) as head:
            wait_for("the head listens", lambda: not is_free(GCS_PORT), head, cluster.log)
            with _watched_nodes(cluster) as watch:
                wait_for("the head is alive", lambda: bool(cluster.counts()), watch, cluster.log)
                yield cluster
    finally:
        shutil.rmtree(temp_dir, ignore_errors=True)


@contextmanager
def _watched_nodes(cluster: Autoscaled) -> Iterator[subprocess.Popen[bytes]]:
    """Writes the number of alive nodes into a file whenever it changes."""
    script = Path(__file__).with_name("watch_nodes.py")
    with open(cluster.seen, "wb") as output:
        watch = subprocess.Popen([sys.executable, str(script), cluster.address], env=cluster.env, stdout=output)
        try:
            yield watch
        finally:
            watch.kill()
            watch.wait()
