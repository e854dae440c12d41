from __future__ import annotations

from typing import Any

import pytest

from raydr.models.config import ModelConfig
from raydr.negatives.config import NegativesConfig
from raydr.training.advice import training_advice
from raydr.training.config import TrainConfig

RUN = {"miner": "run"}


def advice(
    train: dict[str, Any] | None = None, model: dict[str, Any] | None = None, negatives: dict[str, Any] | None = None
) -> list[str]:
    return training_advice(
        TrainConfig.model_validate(train or {}),
        ModelConfig.model_validate(model or {}),
        None if negatives is None else NegativesConfig.model_validate(negatives),
    )


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"train": {"loss": "rcl"}, "model": {"similarity": "dot"}}, "unbounded similarity"),
        ({"train": {"loss": "distillation"}}, "there is nothing to learn from"),
        ({"train": {"pair_detection": {}}}, "does not read the flags"),
        ({"train": {"sampler": "softmax"}, "negatives": RUN}, "set its smoothing to model.scale, 20"),
        ({"train": {"sampler": {"name": "mixed"}}, "negatives": RUN}, "set its smoothing"),
        ({"train": {"sampler": "simans"}, "negatives": RUN}, "set its a to 0.5 · model.scale², 200"),
        ({"train": {"loss": "npc"}}, "without train.pair_detection none is flagged"),
        (
            {"train": {"loss": "npc", "num_epochs": 1, "pair_detection": {}}},
            "begins after 1 epochs of plain NCE, and train.num_epochs is 1",
        ),
        (
            {
                "train": {
                    "loss": {
                        "name": "rcl",
                        "beta": {"initial": 0.9, "final": 0.001, "start_epoch": 1, "ramp_epochs": 1},
                    }
                }
            }
            | {"model": {"similarity": "dot"}},
            "beta 0.9 with an unbounded similarity",
        ),
    ],
)
def test_unwise_settings_are_named(sections: dict[str, Any], said: str) -> None:
    [one] = advice(**sections)
    assert said in one


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"train": {"loss": "npc", "pair_detection": {}}},
        {"train": {"coteaching": {}, "pair_detection": {}}},
        {"train": {"sampler": {"name": "softmax", "smoothing": 20}}, "negatives": RUN},
        {"train": {"sampler": "softmax"}, "negatives": RUN, "model": {"similarity": "dot", "scale": 1}},
        {"train": {"sampler": "softmax"}, "negatives": {"miner": "bm25"}},
    ],
)
def test_nothing_is_said_of_the_others(sections: dict[str, Any]) -> None:
    assert advice(**sections) == []
