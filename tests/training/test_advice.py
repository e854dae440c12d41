from __future__ import annotations

from typing import Any

import pytest

from raydr.training.training import Training, training_advice


def advice(miner: str | None = None, **sections: Any) -> list[str]:
    defaults = {"model": {}, "train": {}, "train_split": "train", "dev_split": "dev", "seed": 0}
    return training_advice(Training.model_validate(defaults | sections), miner)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"train": {"loss": "rcl"}, "model": {"similarity": "dot"}}, "unbounded similarity"),
        ({"train": {"pair_detection": {}}}, "does not read flags"),
        ({"train": {"sampler": "softmax"}, "miner": "trained"}, "set its smoothing to model.scale, 20"),
        ({"train": {"sampler": {"name": "mixed"}}, "miner": "trained"}, "set its smoothing"),
        ({"train": {"sampler": "simans"}, "miner": "trained"}, "set its a to 0.5 · model.scale², 200"),
        ({"train": {"loss": "npc", "pair_detection": None}}, "without train.pair_detection no pair is flagged"),
        ({"model": {"score": "sum_of_max"}}, "sums a cosine for each token, and model.scale is 20"),
        (
            {"train": {"loss": "npc", "num_epochs": 1, "pair_detection": {}}},
            "begins in epoch 2, after plain NCE, and train.num_epochs is 1",
        ),
        (
            {"train": {"coteaching": {"noise_rate": 0.2}, "num_epochs": 1}},
            "leaves out 0% of the noise rate in epoch 1, the last",
        ),
        ({"train": {"coteaching": {"noise_rate": 0.2}}}, "leaves out 20% of the noise rate in epoch 3, the last"),
    ],
)
def test_unwise_settings_are_named(sections: dict[str, Any], message: str) -> None:
    [remark] = advice(**sections)
    assert message in remark


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"train": {"loss": "npc", "pair_detection": {}}},
        {"train": {"coteaching": {"ramp_epochs": 2}, "pair_detection": {}}},
        {"model": {"score": "sum_of_max", "scale": 1}},
        {"model": {"score": "multi"}},
        {"train": {"sampler": {"name": "softmax", "smoothing": 20}}, "miner": "trained"},
        {"train": {"sampler": "softmax"}, "miner": "trained", "model": {"similarity": "dot", "scale": 1}},
        {"train": {"sampler": "softmax"}, "miner": "bm25"},
    ],
)
def test_nothing_is_said_of_the_others(sections: dict[str, Any]) -> None:
    assert advice(**sections) == []
