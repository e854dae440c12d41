"""Nodes come and go while a corpus is encoded, and while an index is searched."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from cluster.ray_process import inherited
from tests.cluster.elastic import NUM_PARTS, NUM_QUERIES

pytestmark = pytest.mark.cluster


@pytest.mark.invariant
def test_parts_and_runs_do_not_depend_on_nodes_that_come_and_go(tmp_path: Path) -> None:
    """On one cluster, see ``elastic``: each start of it takes a minute."""
    # A short path, since sockets lie in it.
    with tempfile.TemporaryDirectory(prefix="ce-") as ray_folder:
        # A lost node is noticed sooner than by default.
        sooner = {"RAY_health_check_initial_delay_ms": "1000", "RAY_health_check_period_ms": "1000"}
        # It refuses to be asked; one that is there and busy may answer late.
        sooner |= {"RAY_health_check_timeout_ms": "60000"}
        ended = subprocess.run(
            [sys.executable, "-m", "tests.cluster.elastic", str(tmp_path)],
            cwd=Path(__file__).parents[2],
            env=inherited() | sooner | {"RAY_TMPDIR": ray_folder},
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr[-4000:]
    facts: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    # A node that joins in the middle of an encoding is used.
    assert facts["alone"]["started elsewhere"] == 0
    assert facts["joined"]["started on the head node"] >= 1
    assert facts["joined"]["started elsewhere"] >= 1
    assert len(facts["alone"]["checksums"]) == NUM_PARTS
    assert facts["joined"]["checksums"] == facts["alone"]["checksums"]
    # A node was killed in its second part, which another node did instead.
    assert facts["lost"]["unfinished"]
    assert facts["lost"]["started elsewhere"] == 2
    assert facts["lost"]["started on the head node"] >= NUM_PARTS - 1
    assert facts["lost"]["checksums"] == facts["alone"]["checksums"]
    # A node was lost while it searched.
    assert len(facts["found alone"]["checksums"]) == NUM_QUERIES
    assert facts["found, one lost"]["unfinished"]
    assert facts["found, one lost"]["checksums"] == facts["found alone"]["checksums"]
    # BM25 on two nodes that hold shards.
    assert (facts["bm25 in one shard"]["shards"], facts["bm25 in shards"]["shards"]) == (1, 6)
    assert facts["bm25 in shards"]["checksums"] == facts["bm25 in one shard"]["checksums"]
