"""Embeddings and first layers that keep their weights, whatever trains the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from raydr.errors import ConfigError
from raydr.models.dual_encoder import DualEncoder
from training.harness import make_trainer, model_config, run_alone, run_with_ranks
from training.test_cross_encoder import config_for
from training.test_cross_encoder import make_trainer as make_classifier_trainer

TRAIN = {
    "num_epochs": 1,
    "batch_size": 8,
    "num_hard_negatives": 2,
    "optimizer": {"learning_rate": 1e-3, "frozen_layers": 1},
}


def frozen(name: str) -> bool:
    """Of the tiny checkpoint's two layers the first."""
    return ".embeddings." in name or ".layer.0." in name


@pytest.mark.parametrize(
    ("towers", "changes"),
    [
        ("shared", {}),
        ("two", {}),
        ("two", {"cache_tokens": 64}),
        ("shared", {"recompute_activations": True}),
        (
            "shared",
            {
                "loss": {"name": "npc", "warmup_epochs": 0},
                "pair_detection": {"detector": "gaussian", "margins": "model", "num_random": 20},
            },
        ),
    ],
)
def test_the_first_layers_stay_and_the_others_learn(
    towers: str, changes: dict[str, Any], tiny_data: tuple[str, str], tiny_checkpoint: str
) -> None:
    config = model_config(tiny_checkpoint, towers=towers)
    before = DualEncoder.from_config(config, seed=0).state_dict()
    _, after = run_alone(tiny_data, config, TRAIN | changes)
    stayed = {name for name, weights in before.items() if torch.equal(weights, after[name])}
    assert stayed == {name for name in before if frozen(name)}
    assert stayed


@pytest.mark.invariant
def test_two_ranks_equal_one(tiny_data: tuple[str, str], tiny_checkpoint: str, tmp_path: Path) -> None:
    config = model_config(tiny_checkpoint)
    _, weights = run_alone(tiny_data, config, TRAIN)
    _, shared = run_with_ranks(2, tmp_path, tiny_data, config, TRAIN)
    for name, tensor in weights.items():
        torch.testing.assert_close(shared[name], tensor, rtol=1e-3, atol=2e-5)


def test_the_embeddings_alone_can_stay(tiny_data: tuple[str, str], tiny_checkpoint: str) -> None:
    trainer = make_trainer(tiny_data, model_config(tiny_checkpoint), TRAIN | {"optimizer": {"frozen_layers": 0}})
    learning = {name: parameter.requires_grad for name, parameter in trainer.learner.model.named_parameters()}
    assert {name for name, learns in learning.items() if not learns} == {
        name for name in learning if "embeddings" in name
    }


def test_a_cross_encoder_has_them_too(tiny_data: tuple[str, str], tiny_checkpoint: str) -> None:
    trainer = make_classifier_trainer(
        tiny_data, config_for(tiny_checkpoint, num_epochs=1, optimizer={"frozen_layers": 1})
    )
    before = {name: weights.clone() for name, weights in trainer.model.state_dict().items()}
    trainer.run()
    after = trainer.model.state_dict()
    stayed = {name for name, weights in before.items() if torch.equal(weights, after[name])}
    assert stayed == {name for name in before if frozen(name)}


def test_something_must_learn(tiny_data: tuple[str, str], tiny_checkpoint: str) -> None:
    error = r"^train.optimizer.frozen_layers is 2, and BertModel has 2 layers: none would learn"
    with pytest.raises(ConfigError, match=error):
        make_trainer(tiny_data, model_config(tiny_checkpoint), TRAIN | {"optimizer": {"frozen_layers": 2}})
