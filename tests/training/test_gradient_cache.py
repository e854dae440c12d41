"""Gradient caching gives the gradients of the whole batch, for every loss, alone and with two ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from raydr.training.batches import Batch
from raydr.training.optimization import seed_step
from raydr.training.trainer import Trainer
from training.harness import make_trainer, model_config, run_alone, run_with_ranks

TRAIN: dict[str, Any] = {
    "num_epochs": 2,
    "batch_size": 8,
    "num_hard_negatives": 2,
    "optimizer": {"learning_rate": 1e-3},
}
LOSSES: dict[str, dict[str, Any]] = {
    "nce": {},
    "rcl": {"loss": {"name": "rcl", "beta": {"final": 0.5, "start_epoch": 0}}},
    "npc": {
        "loss": {"name": "npc", "warmup_epochs": 1},
        "pair_detection": {"margins": "model", "num_random": 20, "detector": "above_median"},
    },
    "accumulated": {"accumulation_steps": 2},
    "co-teaching": {"coteaching": {"noise_rate": 0.5, "ramp_epochs": 1}},
}
#: A few texts at a time.
SMALL = {"cache_tokens": 64}


def gradients_of(trainer: Trainer, batch: Batch) -> dict[str, Tensor]:
    learner = trainer.learner
    learner.model.train()
    seed_step(0, 0, 0)
    output = trainer.config.loss.compute(learner.encode(batch).candidates(), 0)
    learner.optimization.backward(output.per_query_Q.mean())
    return {name: weights.grad for name, weights in learner.model.named_parameters() if weights.grad is not None}


@pytest.mark.invariant
@pytest.mark.parametrize("towers", ["shared", "two"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_are_those_of_the_whole_batch(towers, dropout, tiny_data, tiny_checkpoint):
    """With dropout too: each group draws the same masks when it is encoded again."""
    config = model_config(tiny_checkpoint, towers=towers, dropout=dropout)
    cached, whole = (make_trainer(tiny_data, config, TRAIN | changes) for changes in (SMALL, {}))
    [batch] = next(cached.batches.epoch(0))
    assert len(batch.passages.groups) > 3
    gradients, expected = gradients_of(cached, batch), gradients_of(whole, batch)
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.invariant
def test_no_activations_are_held_between_the_passes(tiny_data, tiny_checkpoint):
    held = []
    for changes in (SMALL, {}):
        trainer = make_trainer(tiny_data, model_config(tiny_checkpoint), TRAIN | changes)
        [batch] = next(trainer.batches.epoch(0))
        kept: list[int] = []
        weights = {tensor.data_ptr() for tensor in trainer.model.parameters()}

        def keep(tensor: Tensor, kept: list[int] = kept, weights: set[int] = weights) -> Tensor:
            kept.append(0 if tensor.data_ptr() in weights else tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            trainer.learner.encode(batch)
        held.append(sum(kept))
    assert held[0] < 0.1 * held[1]


@pytest.mark.invariant
def test_gradients_of_the_groups_add_up_in_float32(tiny_data, tiny_checkpoint):
    config = model_config(tiny_checkpoint, dropout=0.0)
    errors = []
    exact = make_trainer(tiny_data, config, TRAIN)
    [batch] = next(make_trainer(tiny_data, config, TRAIN | SMALL).batches.epoch(0))
    expected = gradients_of(exact, batch)
    for changes in (SMALL, {}):
        own = gradients_of(make_trainer(tiny_data, config, TRAIN | changes | {"dtype": "bfloat16"}), batch)
        errors.append(sum(float((own[name] - expected[name]).norm()) for name in expected))
    assert errors[0] <= errors[1]


@pytest.mark.invariant
@pytest.mark.parametrize("loss", LOSSES)
def test_training_in_pieces_equals_training_whole(loss, tiny_data, tiny_checkpoint):
    config = model_config(tiny_checkpoint, dropout=0.0 if loss != "co-teaching" else 0.1)
    if loss == "co-teaching":
        # Its two networks only differ by dropout, whose masks follow the pieces: it has to run and to learn.
        progress, _ = run_alone(tiny_data, config, TRAIN | LOSSES[loss] | SMALL | {"num_epochs": 4})
        assert progress.history[-1].metrics["loss"] < progress.history[0].metrics["loss"]
        return
    whole, weights = run_alone(tiny_data, config, TRAIN | LOSSES[loss])
    pieces, cached = run_alone(tiny_data, config, TRAIN | LOSSES[loss] | SMALL)
    for epoch, other in zip(whole.history, pieces.history, strict=True):
        assert other.metrics["loss"] == pytest.approx(epoch.metrics["loss"], rel=1e-4)
    for name, tensor in weights.items():
        torch.testing.assert_close(cached[name], tensor, rtol=1e-3, atol=2e-5)


@pytest.mark.invariant
def test_two_ranks_in_pieces_equal_one_whole(tiny_data, tiny_checkpoint, tmp_path):
    config = model_config(tiny_checkpoint, towers="two")
    _, weights = run_alone(tiny_data, config, TRAIN)
    _, shared = run_with_ranks(2, tmp_path, tiny_data, config, TRAIN | SMALL)
    for name, tensor in weights.items():
        torch.testing.assert_close(shared[name], tensor, rtol=1e-3, atol=2e-5)


@pytest.mark.invariant
@pytest.mark.parametrize("score", ["multi", "poly", "genpoly", "sum_of_max"])
def test_several_vectors_a_text_in_pieces(score, ragged_data, tiny_checkpoint):
    """A piece has texts of fewer tokens than the longest of the batch."""
    config = model_config(tiny_checkpoint, score=score, scale=1, dropout=0.0)
    cached, whole = (make_trainer(ragged_data, config, TRAIN | changes) for changes in (SMALL, {}))
    [batch], [at_once] = next(cached.batches.epoch(0)), next(whole.batches.epoch(0))
    assert len({group["input_ids"].shape[1] for group in batch.passages.groups}) > 1
    gradients, expected = gradients_of(cached, batch), gradients_of(whole, at_once)
    assert gradients.keys() == expected.keys() == {name for name, _ in cached.model.named_parameters()}
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)
