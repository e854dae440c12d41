from __future__ import annotations

import pytest
from pydantic import ValidationError

from raydr.component import Component, Config, content_of
from raydr.data.readers.base import Reader
from raydr.losses.base import Loss
from raydr.models.scores.base import ScoreFunction
from raydr.negatives.samplers.base import Sampler
from raydr.noise.detectors.base import Detector
from raydr.noise.judges.base import Judge
from raydr.training.config import TrainConfig


@pytest.mark.parametrize("kind", [Loss, Sampler, ScoreFunction, Detector, Judge, Reader])
def test_a_component_stands_in_the_file_of_its_name(kind: type[Component]) -> None:
    modules = {name: choice.__module__ for name, choice in kind.choices().items()}
    own = {name: module for name, module in modules.items() if module.startswith(f"{kind.package}.")}
    # A judge of candidates stands beside its counterpart for pairs.
    assert own == {name: f"{kind.package}.{name.removesuffix('_negatives')}" for name in own}


@pytest.mark.invariant
@pytest.mark.parametrize("sampler", ["top", {"name": "mixed", "hard": "top"}])
def test_a_fingerprint_has_every_setting_however_deep_it_stands(sampler: object) -> None:
    train = TrainConfig.model_validate({"sampler": sampler})
    settings = train.model_dump(mode="json")
    assert TrainConfig.model_validate(settings) == train
    top = settings["sampler"] if sampler == "top" else settings["sampler"]["hard"]
    assert top == {"name": "top", "first_rank": 1, "last_rank": None, "fill": True}


@pytest.mark.parametrize("value", [True, False, float("nan"), float("inf"), "nan", "high"])
@pytest.mark.parametrize("setting", ["num_epochs", "share_warmup"])
def test_a_number_is_a_finite_number(setting: str, value: object) -> None:
    with pytest.raises(ValidationError, match=setting):
        TrainConfig.model_validate({setting: value})


def test_a_section_of_a_derived_class_is_told_from_one_of_its_base_by_its_values() -> None:
    """A derived class has other defaults: both sections are at their defaults, and mean different things."""

    class Pace(Config):
        rate: float = 2e-5
        steps: int = 10

    class SlowPace(Pace):
        rate: float = 1e-7
        pause: int = 1

    class Job(Config):
        pace: Pace = Pace()

    assert content_of(Job()) == {}
    assert content_of(Job(pace=SlowPace())) == {"pace": {"rate": 1e-7}}
    assert content_of(Job(pace=SlowPace(rate=2e-5, pause=3))) == {"pace": {"pause": 3}}
