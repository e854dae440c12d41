"""Co-teaching: who learns from what."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.models.dual_encoder import DualEncoder
from raydr.training.config import TrainConfig
from raydr.training.coteaching import exchange, require_dropout, select_small_loss
from raydr.training.sections import CoTeachingConfig
from training.harness import make_trainer, model_config, run_alone

TRAIN: dict[str, Any] = {
    "num_epochs": 2,
    "batch_size": 8,
    "num_hard_negatives": 1,
    "optimizer": {"learning_rate": 1e-3},
    "keep": "last",
}


def test_each_network_learns_from_what_the_other_finds_easy():
    first_Q = torch.tensor([1.0, 4.0, 2.0, 3.0], requires_grad=True)
    second_Q = torch.tensor([9.0, 1.0, 8.0, 2.0], requires_grad=True)
    (loss_1, loss_2), (mask_1, mask_2) = exchange((first_Q, second_Q), keep_share=0.5)
    assert mask_1.tolist() == [False, True, False, True]
    assert mask_2.tolist() == [True, False, True, False]
    assert loss_1.item() == pytest.approx((4 + 3) / 2)
    assert loss_2.item() == pytest.approx((9 + 8) / 2)
    (loss_1 + loss_2).backward()
    assert first_Q.grad.tolist() == [0, 0.5, 0, 0.5]
    assert second_Q.grad.tolist() == [0.5, 0, 0.5, 0]


def test_nothing_left_out_is_plain_training(tiny_data, tiny_checkpoint):
    config = model_config(tiny_checkpoint, dropout=0.1)
    _, plain = run_alone(tiny_data, config, TRAIN | {"dev": {"random_passages": 0}})
    trainer = make_trainer(tiny_data, config, TRAIN | {"coteaching": {"noise_rate": 0.0}})
    trainer.dev = None
    trainer.run()
    for name, tensor in plain.items():
        torch.testing.assert_close(trainer.model.state_dict()[name], tensor, rtol=1e-4, atol=1e-6)


def test_the_network_that_is_better_on_dev_is_the_result(tiny_data, tiny_checkpoint):
    trainer = make_trainer(
        tiny_data, model_config(tiny_checkpoint, dropout=0.1), TRAIN | {"coteaching": {"noise_rate": 0.5}}
    )
    progress = trainer.run()
    last = progress.history[-1].metrics
    assert last["dev RR@10"] >= last["dev RR@10, the other network"]
    assert last["keep_share"] == pytest.approx(1 - 0.5 / 10)
    chosen = trainer.chosen.model.state_dict()
    assert all(torch.equal(tensor, chosen[name]) for name, tensor in trainer.model.state_dict().items())
    other = trainer.peer.model.state_dict()
    first = trainer.learner.model.state_dict()
    assert progress.better_network or any(not torch.equal(first[name], other[name]) for name in first)


def test_the_noise_rate_can_come_from_the_detector(tiny_data, tiny_checkpoint):
    settings = {
        "coteaching": {"ramp_epochs": 1},
        "pair_detection": {"margins": "model", "num_random": 20, "detector": "above_median"},
    }
    trainer = make_trainer(tiny_data, model_config(tiny_checkpoint, dropout=0.1), TRAIN | settings)
    progress = trainer.run()
    flagged = progress.detections[-1]["share_flagged"]
    assert flagged == 0.5
    assert progress.history[-1].metrics["keep_share"] == pytest.approx(1 - flagged)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"coteaching": {}}, "needs a noise_rate, or pair_detection"),
        ({"coteaching": {"noise_rate": 0.2}, "loss": "npc", "pair_detection": {}}, "has no teacher"),
        ({"coteaching": {"noise_rate": 1.0}}, "less than 1"),
        (
            {"coteaching": {"noise_rate": 0.2}, "loss": {"name": "npc", "use_consistency": False}},
            "flagged pairs have none",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        TrainConfig.model_validate(settings)


def test_a_network_without_dropout_is_refused(tiny_checkpoint):
    """Whoever set it: the config, or the checkpoint."""
    require_dropout(DualEncoder.from_config(model_config(tiny_checkpoint, dropout=0.1)))
    with pytest.raises(ConfigError, match=r"the checkpoint has no dropout.*set model\.dropout"):
        require_dropout(DualEncoder.from_config(model_config(tiny_checkpoint, dropout=0.0)))


def test_two_networks_that_would_stay_alike_are_refused():
    raw = {
        "data": {"reader": {"name": "beir", "path": "unused"}},
        "model": {"dropout": 0.0},
        "train": {"coteaching": {"noise_rate": 0.2}},
    }
    with pytest.raises(ConfigError, match=r"would stay so with model\.dropout 0"):
        RunConfig.parse(raw)


@pytest.mark.parametrize("noise_rate", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("ramp_epochs", [1, 5])
def test_schedule_is_the_papers_formula(noise_rate, ramp_epochs):
    schedule = CoTeachingConfig(noise_rate=noise_rate, ramp_epochs=ramp_epochs)
    for epoch in range(12):
        expected = 1 - min(epoch / ramp_epochs * noise_rate, noise_rate)
        assert schedule.keep_share(epoch, 0.9) == pytest.approx(expected)


def test_the_share_of_the_last_detection_stands_in_for_the_noise_rate():
    schedule = CoTeachingConfig(ramp_epochs=2)
    shares = [schedule.keep_share(epoch, share) for epoch, share in ((5, None), (1, 0.4), (5, 0.4), (5, 1.0))]
    assert shares == pytest.approx([1.0, 0.8, 0.6, 0.01])


@pytest.mark.parametrize(("share", "num_kept"), [(1.0, 10), (0.6, 6), (0.55, 5), (0.01, 1)])
def test_keeps_the_smallest_losses(share, num_kept):
    loss_Q = torch.rand(10, generator=torch.Generator().manual_seed(0), requires_grad=False)
    kept = select_small_loss(loss_Q, share)
    assert kept.tolist() == sorted(sorted(range(10), key=lambda query: loss_Q[query].item())[:num_kept])


def test_ties_go_to_the_earlier_query():
    assert select_small_loss(torch.ones(6), 0.5).tolist() == [0, 1, 2]


def test_floating_point_does_not_cost_a_query():
    assert len(select_small_loss(torch.arange(100.0), 1.0 - 0.43)) == 57
