"""Encoding on an autoscaling cluster: demand brings nodes up from none, idleness takes them down."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from patience import wait_until

from cluster.make_believe import GCS_PORT, autoscaled_cluster
from cluster.ports import is_free
from raydr.store.artifact import Artifact

pytestmark = pytest.mark.cluster


def test_encoding_brings_nodes_up_from_none_and_idleness_takes_them_down(
    tmp_path: Path, beir_folder: Path, tiny_checkpoint: str
) -> None:
    if not is_free(GCS_PORT):
        pytest.skip(f"port {GCS_PORT}, which Ray's make-believe nodes need, is taken by another process")
    side = {"max_length": 16}
    raw = {
        "name": "autoscaled",
        "workdir": str(tmp_path / "work"),
        "data": {"reader": {"name": "beir", "path": str(beir_folder)}, "part_rows": 10},
        "model": {"checkpoint": tiny_checkpoint, "query": side, "passage": side},
        "encode": {"dtype": "float32", "min_actors": 1, "max_actors": 2},
        "tracking": {"enabled": False},
        "ray": {"capacity": {"CPU": 4}},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(raw))
    with autoscaled_cluster(tmp_path, idle_minutes=0.1) as cluster:
        command = [sys.executable, "-m", "raydr", "encode", str(tmp_path / "run.yaml"), "--model", "untrained"]
        encoded = subprocess.run(
            [*command, "--set", f"ray.address={cluster.address}"],
            env=cluster.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert encoded.returncode == 0, encoded.stderr + cluster.log.read_text()[-2000:]
        wait_until(lambda: cluster.counts()[-1] == 1, "idle workers are given back")
    counts = cluster.counts()
    assert counts[0] == 1, "there were workers before there was work"
    assert max(counts) >= 2, "no worker came up"
    # Both at once: twelve parts keep them busy, and the capacity is stated.
    assert "2 encoders" in encoded.stderr
    assert "1 to 2 encoders" not in encoded.stderr
    vectors = Artifact.open(str(tmp_path / "work" / "embeddings" / "untrained" / "passages"), "embeddings")
    assert vectors.info["num_rows"] == 120
