"""Gradient caching gives the gradients of the whole batch, for every loss, alone and with two ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from training.harness import make_trainer, model_config, run_alone, run_with_ranks

from raydr.training.optimization import seed_step

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


@pytest.mark.invariant
@pytest.mark.parametrize("towers", ["shared", "two"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_are_those_of_the_whole_batch(towers, dropout, tiny_data, tiny_checkpoint):
    """With dropout too: each piece draws the same masks when it is encoded again."""
    config = model_config(tiny_checkpoint, towers=towers, dropout=dropout)
    cached = make_trainer(tiny_data, config, TRAIN | SMALL)
    [batch] = next(cached.batches.epoch(0))
    assert len(batch.passages.groups) > 3
    gradients = []
    for cache_tokens in (64, None):
        trainer = make_trainer(tiny_data, config, TRAIN | {"cache_tokens": cache_tokens})
        learner = trainer.learner
        learner.model.train()
        seed_step(0, 0, 0)
        if cache_tokens is None and dropout:
            # Encoded piece by piece in the same order, the whole batch draws the same masks.
            from raydr.training.gradient_cache import CachedEncoding

            pairs = CachedEncoding(learner.model, batch.queries, batch.passages)._groups
            seed_step(0, 0, 0)
            vectors = [learner.model(*pair) for pair in pairs]
            query_QD, passage_PD = (torch.cat([pair[side] for pair in vectors]) for side in (0, 1))
            query_QD, passage_PD = query_QD[batch.queries.places_N], passage_PD[batch.passages.places_N]
            from raydr.training.scoring import BatchView, Encodings

            encoded = Encodings.gathered(query_QD, passage_PD, learner.model.config)
            candidates = BatchView.gathered(encoded, batch).candidates()
        else:
            candidates = learner.encode(batch).candidates()
        learner.backward(trainer.config.loss.compute(candidates, 0).per_query_Q.mean(), quiet=False)
        gradients.append(
            {name: parameter.grad for name, parameter in learner.model.named_parameters() if parameter.grad is not None}
        )
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-4, atol=1e-6)


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
    gradients = []
    for cache_tokens in (64, None):
        trainer = make_trainer(ragged_data, config, TRAIN | {"cache_tokens": cache_tokens})
        learner = trainer.learner
        [batch] = next(trainer.batches.epoch(0))
        assert len({group["input_ids"].shape[1] for group in batch.passages.groups}) > 1 or cache_tokens is None
        learner.backward(
            trainer.config.loss.compute(learner.encode(batch).candidates(), 0).per_query_Q.mean(), quiet=False
        )
        gradients.append(
            {name: parameter.grad for name, parameter in learner.model.named_parameters() if parameter.grad is not None}
        )
    assert gradients[0].keys() == gradients[1].keys() == {name for name, _ in learner.model.named_parameters()}
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-4, atol=1e-6)
