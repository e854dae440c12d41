"""Activation checkpointing gives the same gradients from less memory."""

from __future__ import annotations

import pytest
import torch

from raydr.training.optimization import seed_step
from training.harness import make_trainer, model_config, run_alone, run_with_ranks

TRAIN = {"num_epochs": 2, "batch_size": 8, "num_hard_negatives": 2, "optimizer": {"learning_rate": 1e-3}}
RECOMPUTE = {"recompute_activations": True}


@pytest.mark.invariant
@pytest.mark.parametrize("towers", ["shared", "two"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_are_the_same_and_less_is_kept(towers, dropout, tiny_data, tiny_checkpoint):
    config = model_config(tiny_checkpoint, towers=towers, dropout=dropout)
    gradients, kept = [], []
    for changes in ({}, RECOMPUTE):
        trainer = make_trainer(tiny_data, config, TRAIN | changes)
        learner = trainer.learner
        learner.model.train()
        [batch] = next(trainer.batches.epoch(0))
        seed_step(0, 0, 0)
        size = 0

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal size
            size += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = trainer.config.loss.compute(learner.encode(batch).candidates(), 0).per_query_Q.mean()
        kept.append(size)
        learner.optimization.backward(loss)
        gradients.append(
            {name: parameter.grad for name, parameter in learner.model.named_parameters() if parameter.grad is not None}
        )
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-5, atol=1e-7)
    assert kept[1] < 0.6 * kept[0]


@pytest.mark.invariant
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cache_tokens": 64},
        {
            "loss": {"name": "npc", "warmup_epochs": 1},
            "pair_detection": {"detector": "gaussian", "margins": "model", "num_random": 20},
        },
    ],
)
def test_training_is_the_same(changes, tiny_data, tiny_checkpoint):
    config = model_config(tiny_checkpoint, dropout=0.1)
    _, plain = run_alone(tiny_data, config, TRAIN | changes)
    _, again = run_alone(tiny_data, config, TRAIN | changes | RECOMPUTE)
    for name, tensor in plain.items():
        torch.testing.assert_close(again[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.invariant
def test_two_ranks_equal_one(tiny_data, tiny_checkpoint, tmp_path):
    config = model_config(tiny_checkpoint, towers="two")
    _, weights = run_alone(tiny_data, config, TRAIN)
    _, shared = run_with_ranks(2, tmp_path, tiny_data, config, TRAIN | RECOMPUTE)
    for name, tensor in weights.items():
        torch.testing.assert_close(shared[name], tensor, rtol=1e-3, atol=2e-5)
