"""Gradients that travel in half precision: the same training up to their rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from training.harness import model_config, run_alone, run_with_ranks

TRAIN: dict[str, Any] = {"num_epochs": 2, "batch_size": 8, "num_hard_negatives": 2}


@pytest.mark.invariant
@pytest.mark.parametrize("cached", [{}, {"cache_tokens": 64}], ids=["whole", "in pieces"])
def test_gradients_in_half_precision_train_the_same_up_to_rounding(
    cached: dict[str, Any], tiny_data: Any, tiny_checkpoint: str, tmp_path: Path
) -> None:
    config = model_config(tiny_checkpoint)
    alone, expected = run_alone(tiny_data, config, TRAIN)
    exact, unrounded = run_with_ranks(2, tmp_path / "exact", tiny_data, config, TRAIN | cached)
    half = TRAIN | cached | {"gradients": "bfloat16"}
    halved, rounded = run_with_ranks(2, tmp_path / "half", tiny_data, config, half)

    def losses(progress: Any) -> list[float]:
        return [row.metrics["loss"] for row in progress.history]

    assert losses(exact) == pytest.approx(losses(alone), rel=1e-4)
    assert losses(halved) == pytest.approx(losses(alone), rel=5e-3)

    def apart(weights: dict[str, torch.Tensor]) -> float:
        return max(float((weights[name] - tensor).abs().max()) for name, tensor in expected.items())

    # What is sent is rounded, and no more than that goes wrong.
    assert 3 * apart(unrounded) < apart(rounded) < 1e-3


def test_a_single_worker_sends_nothing(tiny_data: Any, tiny_checkpoint: str) -> None:
    config = model_config(tiny_checkpoint)
    plain, halved = (run_alone(tiny_data, config, TRAIN | {"gradients": dtype})[1] for dtype in ("float32", "bfloat16"))
    assert all(plain[name].equal(halved[name]) for name in plain)
