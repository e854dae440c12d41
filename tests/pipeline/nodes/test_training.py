"""What a trained model is made from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from small_runs import recipe_of, small_run

from raydr.config.run import RunConfig


@pytest.mark.invariant
@pytest.mark.usefixtures("here")
def test_a_training_from_other_weights_is_another_model(
    beir_folder: Path, tiny_checkpoint: str, tmp_path: Path
) -> None:
    """No candidates and no judges here, whose keys would change along."""

    def key(checkpoint: Path) -> str:
        run = small_run(beir_folder, str(checkpoint), tmp_path / "w", negatives=None, train={"num_hard_negatives": 0})
        return recipe_of(RunConfig.parse(run)).trained().key

    start = Path(shutil.copytree(tiny_checkpoint, tmp_path / "start"))
    before = key(start)
    assert key(Path(shutil.copytree(start, tmp_path / "moved"))) == before
    weights = start / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert key(start) != before
