"""A cloud takes a node back from a training, with notice, and brings another."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from training.harness import model_config, run_alone

from cluster.ray_process import inherited
from raydr.models.dual_encoder import DualEncoder
from tests.cluster.notice import JOIN_AFTER, NEXT_EPOCH, NOTICE_AFTER, TRAIN

pytestmark = pytest.mark.cluster


@pytest.mark.invariant
def test_a_training_loses_a_step_to_a_node_that_goes_and_none_to_a_node_that_comes(
    tiny_data: tuple[str, str], tiny_checkpoint: str, tmp_path: Path
) -> None:
    """Without the notice it would have begun again with the second epoch. Two nodes train to the end."""
    # A short path, since sockets lie in it.
    with tempfile.TemporaryDirectory(prefix="cn-") as ray_folder:
        ended = subprocess.run(
            [sys.executable, "-m", "tests.cluster.notice", str(tmp_path), *tiny_data, tiny_checkpoint],
            cwd=Path(__file__).parents[2],
            env=inherited() | {"RAY_TMPDIR": ray_folder, "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "0.2"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr[-4000:]
    facts = json.loads(ended.stdout.splitlines()[-1])
    resumed = re.findall(r"going on from epoch (\d+), step (\d+)", "\n".join(facts["messages"]))
    gone, joined = (5 * (int(epoch) - 1) + int(step) for epoch, step in resumed)
    assert NOTICE_AFTER < facts["stopped"] - 1 == gone
    # Not the second, which was the last state when the node came.
    assert joined == NEXT_EPOCH - 1 > JOIN_AFTER
    assert facts["world_size"] == 2
    _, expected = run_alone(tiny_data, model_config(tiny_checkpoint), TRAIN)
    weights = DualEncoder.load(tmp_path / "model").state_dict()
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-3, atol=2e-5)
