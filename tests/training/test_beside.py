"""Dev measures taken beside training lead to the same model as those taken between epochs."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from training.harness import Recorder, make_trainer, model_config

from raydr.training.checkpoint import Progress
from raydr.training.trainer import State, Trainer

TRAIN: dict[str, Any] = {
    "num_epochs": 4,
    "batch_size": 8,
    "num_hard_negatives": 2,
    "optimizer": {"learning_rate": 1e-3},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "nce": {},
    "npc": {"loss": {"name": "npc", "warmup_epochs": 1}, "pair_detection": {"num_random": 20}},
    "co-teaching": {"coteaching": {"noise_rate": 0.5, "ramp_epochs": 1}},
    # Learning far too fast, no epoch is better than the first ones.
    "tired": {"optimizer": {"learning_rate": 0.5}, "dev": {"patience": 1}},
    "tired, last": {"optimizer": {"learning_rate": 0.5}, "dev": {"patience": 1}, "keep": "last"},
}


class Late:
    """Measures with a network of its own, and only when it is asked for the result."""

    def __init__(self, trainer: Trainer) -> None:
        self.model = copy.deepcopy(trainer.model)
        self.trainer = trainer
        self.states: list[State] = []
        self.submitted = 0

    def ready(self) -> bool:
        return True

    def submit(self, states: list[State]) -> None:
        self.states = states
        self.submitted += 1

    def result(self) -> list[float]:
        assert self.trainer.setup.dev is not None
        values = []
        for state in self.states:
            self.model.load_state_dict(state)
            values.append(self.trainer.setup.dev.measure(self.model, torch.float32))
        return values


class Busy(Late):
    """Never gets its resources."""

    def ready(self) -> bool:
        return False


def with_validator(trainer: Trainer, kind: type[Late]) -> Late:
    validator = kind(trainer)
    trainer.setup = replace(trainer.setup, beside=validator)
    return validator


def outcome(progress: Progress) -> dict[str, Any]:
    """Everything but the clock."""
    found = progress.model_dump(exclude={"global_step", "clean"})
    for row in found["history"]:
        row["metrics"].pop("seconds")
    return found


@pytest.mark.invariant
@pytest.mark.parametrize("variant", VARIANTS)
def test_beside_is_the_same_as_between(variant, tiny_data, tiny_checkpoint):
    train = TRAIN | VARIANTS[variant]
    between, beside = (make_trainer(tiny_data, model_config(tiny_checkpoint, dropout=0.1), train) for _ in range(2))
    validator = with_validator(beside, Late)
    expected, found = between.run(), beside.run()
    assert validator.submitted > 1
    assert outcome(found) == outcome(expected)
    assert (len(expected.history) < 4) == variant.startswith("tired")
    for name, tensor in between.model.state_dict().items():
        assert torch.equal(beside.model.state_dict()[name], tensor), name


def test_without_free_resources_it_measures_between_epochs(tiny_data, tiny_checkpoint):
    config = model_config(tiny_checkpoint)
    between, busy = (make_trainer(tiny_data, config, TRAIN) for _ in range(2))
    validator = with_validator(busy, Busy)
    assert outcome(busy.run()) == outcome(between.run())
    assert validator.submitted == 0


@pytest.mark.invariant
@pytest.mark.parametrize("stop", [5, 7])
@pytest.mark.parametrize("goes_on", ["beside", "between"])
def test_killed_while_measuring_resumed_equals_uninterrupted(stop, goes_on, tiny_data, tiny_checkpoint, tmp_path):
    train = TRAIN | {"checkpoint_steps": 1}
    config = model_config(tiny_checkpoint, dropout=0.1)
    whole = make_trainer(tiny_data, config, train, Recorder(keep_at=stop, folder=tmp_path))
    with_validator(whole, Late)
    expected = whole.run()
    assert Progress.model_validate_json((tmp_path / "progress.json").read_text()).pending_epoch == 0
    resumed = make_trainer(tiny_data, config, train)
    if goes_on == "beside":
        with_validator(resumed, Late)
    resumed.resume(tmp_path)
    assert outcome(resumed.run()) == outcome(expected)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], tensor), name
