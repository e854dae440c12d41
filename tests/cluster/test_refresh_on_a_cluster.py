"""A whole refresh as on a cloud: nodes that come on demand, are drained and lost, and artefacts in a bucket.

``make cluster`` runs it, with the other tests of clusters; it must end with a laptop's artefacts, byte for byte.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import psutil
import pytest
import yaml
from patience import wait_until
from s3_server import served_bucket
from small_runs import small_run
from store_contents import store_contents

from cluster.make_believe import GCS_PORT, HEAD_ID, Autoscaled, autoscaled_cluster
from cluster.ports import is_free
from raydr.training.checkpoint import PROGRESS

pytestmark = [pytest.mark.cloud, pytest.mark.timeout(1800)]

_STARTED = re.compile(r"^== (\S+) -> (\S+)$")
#: Bytes as GiB: a node's cache that holds less than one refresh reads.
FULL_CACHE_GIB = "0.001"


def write_config(folder: Path, workdir: str, beir_folder: Path, checkpoint: str, ray: dict[str, Any]) -> Path:
    config = small_run(
        beir_folder,
        checkpoint,
        folder,
        name="cloud",
        data={"part_rows": 10},
        # A worker takes a whole node.
        train={"num_epochs": 4, "num_workers": 2, "cpus_per_worker": 2, "checkpoint_steps": 1},
        encode={"token_budget": 256, "max_actors": 2},
        index={"shard_rows": 40},
        search={"batch_queries": 8, "cpus_per_actor": 1},
        evaluate={"measures": ["RR@10", "R@5"], "answer_cutoffs": [], "bootstrap_samples": 100, "permutations": 100},
        judge={"judges": [{"name": "margin"}]},
        refresh={"num_rounds": 1, "evaluate_splits": ["dev"]},
    )
    config["workdir"], config["ray"] = workdir, ray
    folder.mkdir()
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def refresh(config: Path, env: dict[str, str] | None, at_step: dict[str, Callable[[str], None]]) -> str:
    """Run it, and what is to happen when a step starts, given the step's place; returns what it said.

    It says where a step is in its working folder.
    """
    workdir = yaml.safe_load(config.read_text())["workdir"]
    command = [sys.executable, "-m", "raydr", "refresh", str(config)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env)
    assert process.stderr is not None
    output, waiting = [], dict(at_step)
    try:
        for line in process.stderr:
            output.append(line)
            if (match := _STARTED.match(line.rstrip())) and (happens := waiting.pop(match.group(1), None)):
                happens(f"{workdir}/{match.group(2)}")
        assert process.wait() == 0, "".join(output[-60:])
    finally:
        process.kill()
    assert not waiting, f"never reached: {sorted(waiting)} in:\n{''.join(output)}"
    return "".join(output)


def nodes() -> dict[str, psutil.Process]:
    """The raylets of the nodes that were started on demand, by node id."""
    raylets = {}
    for process in psutil.process_iter(["name"]):
        try:
            node = (
                process.environ().get("RAY_OVERRIDE_NODE_ID_FOR_TESTING") if process.info["name"] == "raylet" else None
            )
        except psutil.Error:
            # It has ended meanwhile.
            continue
        if node and node != HEAD_ID:
            raylets[node] = process
    return raylets


def busy_node() -> tuple[str, psutil.Process]:
    """A node on which an actor is."""
    while True:
        for node, raylet in sorted(nodes().items()):
            if any(" ".join(worker.cmdline()).startswith("ray::") and "IDLE" not in " ".join(worker.cmdline())
                   for worker in raylet.children()):  # fmt: skip
                return node, raylet
        time.sleep(0.1)


def listed(place: str, pattern: str) -> bool:
    files, root = fsspec.url_to_fs(place)
    files.invalidate_cache()
    return bool(files.glob(f"{root}/{pattern}"))


class Cloud:
    """Takes machines back."""

    def __init__(self, cluster: Autoscaled) -> None:
        self.cluster = cluster
        self.taken: list[str] = []

    def give_notice(self, place: str) -> None:
        """Once training has kept a state: a node is drained, and gone three seconds later."""
        wait_until(lambda: listed(f"{place}.training", f"**/{PROGRESS}"), "a state is kept")
        node, raylet = busy_node()
        reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "the cloud takes it back"]
        command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--address", self.cluster.address]
        subprocess.run(
            [*command, "--node-id", node, *reason, "--deadline-remaining-seconds", "3"],
            env=self.cluster.env, check=True, capture_output=True,
        )  # fmt: skip
        time.sleep(3)
        self._take(node, raylet)

    def lose(self, place: str) -> None:
        """Once a part is written: a node is gone without a word."""
        wait_until(lambda: listed(place, "part-*") or listed(place, "shard-*"), "a part is written")
        self._take(*busy_node())

    def _take(self, node: str, raylet: psutil.Process) -> None:
        self.taken.append(node)
        raylet.kill()


@pytest.fixture
def bucket() -> Iterator[Any]:
    with served_bucket() as bucket:
        yield bucket


def test_nodes_come_and_go_and_the_bucket_holds_what_a_laptop_makes(
    tmp_path: Path, beir_folder: Path, tiny_checkpoint: str, bucket: Any
) -> None:
    if not is_free(GCS_PORT):
        pytest.skip(f"port {GCS_PORT}, which Ray's make-believe nodes need, is taken by another process")
    here = {"num_cpus": 4, "object_store_gib": 0.2, "temp_dir": f"/tmp/rl-{tmp_path.name[-4:]}"}
    laptop = str(tmp_path / "laptop" / "work")
    refresh(write_config(tmp_path / "laptop", laptop, beir_folder, tiny_checkpoint, here), None, {})
    cache = {"RAYDR_CACHE": str(tmp_path / "cache"), "RAYDR_CACHE_GIB": FULL_CACHE_GIB}
    # A lost node is noticed sooner than by default.
    sooner = {"RAY_health_check_initial_delay_ms": "1000", "RAY_health_check_period_ms": "1000"}
    with autoscaled_cluster(tmp_path, idle_minutes=0.2, **cache, **sooner, **bucket.variables) as cluster:
        cloud = Cloud(cluster)
        there = {"address": cluster.address, "capacity": {"CPU": 4}}
        config = write_config(tmp_path / "cloud", f"{bucket.url}/work", beir_folder, tiny_checkpoint, there)
        happens = {"round-1/train": cloud.give_notice, "round-1/encode-round-1-passages": cloud.lose}
        refresh(config, cluster.env, happens)
        wait_until(lambda: cluster.counts()[-1] == 1, "idle workers are given back")
    assert cluster.counts()[0] == 1
    assert max(cluster.counts()) >= 3
    assert len(cloud.taken) == 2
    assert store_contents(f"{bucket.url}/work") == store_contents(laptop)
