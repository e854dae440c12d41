"""A training on a GPU is that of a processor, whole or in pieces, up to the arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from training.harness import Recorder, make_trainer, model_config

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
#: By name of the loss, its settings and those that it wants; every one of them measures and judges from the start.
LOSSES: dict[str, dict[str, Any]] = {
    "nce": {},
    "rcl": {"beta": {"final": 0.5, "start_epoch": 0}},
    "npc": {"warmup_epochs": 0},
}


def losses_of(data: Any, checkpoint: str, device: str, **train: Any) -> list[float]:
    recorder = Recorder()
    settings = {"num_epochs": 2, "batch_size": 8, "num_hard_negatives": 2, **train}
    make_trainer(data, model_config(checkpoint), settings, recorder, device=device).run()
    return [step["loss"] for step in recorder.steps]


@pytest.mark.invariant
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_training_in_pieces_on_a_device_is_the_whole_one_on_a_processor(
    loss: str, device: str, ragged_data: Any, tiny_checkpoint: str
) -> None:
    chosen = {"loss": {"name": loss, **LOSSES[loss]}, "pair_detection": {"margins": "model", "num_random": 20}}
    expected = losses_of(ragged_data, tiny_checkpoint, "cpu", **chosen)
    losses = losses_of(ragged_data, tiny_checkpoint, device, cache_tokens=64, **chosen)
    assert losses == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_close(dtype: str, device: str, tiny_data: Any, tiny_checkpoint: str) -> None:
    expected = losses_of(tiny_data, tiny_checkpoint, "cpu")
    losses = losses_of(tiny_data, tiny_checkpoint, device, dtype=dtype)
    assert torch.tensor(losses).isfinite().all()
    assert losses == pytest.approx(expected, rel=0.1)
