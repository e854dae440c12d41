"""What a verb says of the machine before it begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import small_run

import raydr
from raydr.config.run import RunConfig

IDLE = "there is a GPU, and nothing here uses it: --set train.use_gpu=true --set encode.gpus_per_actor=1"


@pytest.mark.parametrize(
    ("gpus", "sections", "told"),
    [(1.0, {}, True), (0.0, {}, False), (1.0, {"search": {"device": "cuda"}}, False)],
)
def test_a_gpu_that_nothing_uses_is_told_of(
    gpus: float,
    sections: dict[str, Any],
    told: bool,
    beir_folder: Path,
    tiny_checkpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path, negatives=None, **sections))
    train = config.train.model_copy(update={"num_hard_negatives": 0, "num_epochs": 1})
    config = config.model_copy(update={"train": train})
    monkeypatch.setattr("raydr.graph.session.cluster_capacity", lambda: {"CPU": 2.0, "GPU": gpus})
    raydr.prepare(config)
    assert IDLE not in _flat(capsys.readouterr().err)
    raydr.train(config)
    assert (IDLE in _flat(capsys.readouterr().err)) == told


def _flat(text: str) -> str:
    return " ".join(text.split())
