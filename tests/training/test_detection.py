"""What a pair's margin is measured against."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from raydr.noise.margins import npc_margins
from raydr.seeding import query_rng
from training.harness import make_trainer, model_config

TRAIN: dict[str, Any] = {
    "batch_size": 8,
    "loss": {"name": "npc", "warmup_epochs": 0},
    "pair_detection": {"detector": "gaussian", "margins": "model", "num_random": 100},
}


@pytest.mark.invariant
def test_a_pairs_own_positive_is_not_among_what_it_is_measured_against(
    tiny_data: tuple[str, str], tiny_checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[np.ndarray] = []

    def measured(positive_N: np.ndarray, random_NM: np.ndarray) -> np.ndarray:
        seen.append(random_NM)
        return npc_margins(positive_N, random_NM)

    monkeypatch.setattr("raydr.training.detection.npc_margins", measured)
    trainer = make_trainer(tiny_data, model_config(tiny_checkpoint), TRAIN)
    detector, examples = trainer.detector, trainer.batches.examples
    assert detector is not None
    detector.measure(trainer.model, 1, torch.float32)
    [random_NM] = seen
    # 100 of 40 pairs, with replacement: nearly every pair draws itself.
    drawn = [
        query_rng(detector.seed, 1, query_id, "perplexity").integers(40, size=100) for query_id in examples.query_ids
    ]
    own_NM = np.stack(drawn) == np.arange(40)[:, None]
    assert own_NM.any(axis=1).mean() > 0.8
    np.testing.assert_array_equal(np.isneginf(random_NM), own_NM)
