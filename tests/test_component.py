from __future__ import annotations

import pytest

from raydr.training.config import TrainConfig


@pytest.mark.invariant
@pytest.mark.parametrize("sampler", ["top", {"name": "mixed", "hard": "top"}])
def test_a_fingerprint_has_every_setting_however_deep_it_stands(sampler: object) -> None:
    train = TrainConfig.model_validate({"sampler": sampler})
    settings = train.model_dump(mode="json")
    assert TrainConfig.model_validate(settings) == train
    top = settings["sampler"] if sampler == "top" else settings["sampler"]["hard"]
    assert top == {"name": "top", "first_rank": 1, "last_rank": None, "fill": True}
