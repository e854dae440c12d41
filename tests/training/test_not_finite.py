"""Gradients that are not finite: never applied, named with their step, and nothing is kept after them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from raydr.errors import TrainingError
from raydr.models.training_config import OptimizerConfig
from raydr.training.coteaching import CoTeachingTrainer
from raydr.training.cross_encoder import CrossEncoderTrainer
from raydr.training.optimization import Optimization
from raydr.training.ranker_config import RankerConfig
from raydr.training.trainer import Trainer
from training.harness import Recorder, make_ranker_trainer, make_trainer, model_config, run_in_ranks

#: Five steps an epoch, none logged but the last.
TRAIN: dict[str, Any] = {"num_epochs": 2, "batch_size": 8, "optimizer": {"learning_rate": 1e-3}, "log_steps": 100}


def spoil(trainer: Trainer | CrossEncoderTrainer, call: int) -> None:
    """Make the losses of a call of the forward pass, from 0, NaN."""
    calls, name = iter(range(10**6)), "forward" if isinstance(trainer, Trainer) else "_forward"
    forward = getattr(trainer, name)

    def spoilt(*arguments: Any) -> Any:
        output = forward(*arguments)
        if next(calls) == call:
            return type(output)(output.per_query_Q * float("nan"), output.metrics)
        return output

    setattr(trainer, name, spoilt)


@pytest.mark.parametrize(
    "changes",
    [{}, {"dtype": "bfloat16"}, {"dtype": "float16"}, {"coteaching": {"noise_rate": 0.2}}],
    ids=["float32", "bfloat16", "float16", "co-teaching"],
)
def test_the_error_names_the_step_and_no_later_state_is_kept(changes, tiny_data, tiny_checkpoint, monkeypatch) -> None:
    """The eighth step is bad; the program looks at the ninth, where a state is due."""
    recorder, kept = Recorder(), list[int]()
    monkeypatch.setattr(recorder, "on_checkpoint", lambda progress, copy: kept.append(progress.global_step))
    trainer = make_trainer(
        tiny_data, model_config(tiny_checkpoint), TRAIN | {"checkpoint_steps": 2} | changes, recorder
    )
    networks = 2 if isinstance(trainer, CoTeachingTrainer) else 1
    spoil(trainer, 7 * networks)
    with pytest.raises(
        TrainingError, match=r"not finite \(loss nan\) in epoch 2, step 3 of 5; .* queries: q\d\d.*rate"
    ):
        trainer.run()
    assert kept == [2, 4, 5, 7]
    assert all(bool(weights.isfinite().all()) for weights in trainer.model.parameters())


def trainer_with_a_spoilt_rank(data: Any, checkpoint: str) -> Trainer:
    trainer = make_trainer(data, model_config(checkpoint), TRAIN)
    if trainer.batches.rank == 1:
        spoil(trainer, 2)
    return trainer


def test_all_ranks_stop_where_the_loss_of_a_rank_is_bad(tiny_data, tiny_checkpoint, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"TrainingError: .* in epoch 1, step 3 of 5"):
        run_in_ranks(2, tmp_path, trainer_with_a_spoilt_rank, tiny_data, tiny_checkpoint)


def test_a_ranker_stops_too(tiny_data, tiny_checkpoint) -> None:
    config = RankerConfig.model_validate(
        {"model": {"checkpoint": tiny_checkpoint, "max_length": 64}, "batch_size": 8, "num_hard_negatives": 2}
    )
    epochs: list[int] = []
    trainer = make_ranker_trainer(tiny_data, config, lambda progress, copy: epochs.append(progress.epoch))
    spoil(trainer, 1)
    with pytest.raises(
        TrainingError, match=r"not finite \(loss nan\) in epoch 1, step 2 of 5; rank 0's queries: q\d\d"
    ):
        trainer.run()
    assert not epochs


def test_a_bad_step_changes_neither_weights_nor_moments() -> None:
    """Without it the network would be the same, bit for bit."""
    config = OptimizerConfig(learning_rate=0.1, schedule="constant", warmup_share=0.0)
    calm = Optimization(nn.Linear(5, 3), config, 10, torch.float32)
    hurt = Optimization(copy.deepcopy(calm.model), config, 10, torch.float32)
    batches = torch.randn(4, 2, 5, generator=torch.Generator().manual_seed(0))
    for at, batch in enumerate(batches):
        for optimization in (calm, hurt):
            optimization.backward(optimization.model(batch).square().sum())
            assert optimization.clip().isfinite()
            optimization.step()
        if at == 1:
            hurt.backward(hurt.model(batch).sum() * float("inf"))
            assert not hurt.clip().isfinite()
            hurt.step()
    moments = [list(each.optimizer.state_dict()["state"].values()) for each in (calm, hurt)]
    for mine, other in zip(*moments, strict=True):
        assert all(mine[name].equal(other[name]) for name in ("step", "exp_avg", "exp_avg_sq"))
    for weights, others in zip(calm.model.parameters(), hurt.model.parameters(), strict=True):
        assert weights.equal(others)
