from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from pydantic import ValidationError
from ray import cloudpickle

from raydr.component import Component, Config, content_of
from raydr.data.readers.base import Reader
from raydr.errors import ConfigError
from raydr.losses.base import Loss
from raydr.losses.nce import NCE
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


def test_a_component_that_is_defined_again_replaces_the_former() -> None:
    """As a cell of a notebook does that runs a second time."""

    def define(default: int) -> type[Sampler]:
        class Again(Sampler):
            name: Literal["again"] = "again"
            size: int = default

        return Again

    former, latter = define(1), define(2)
    assert Sampler.choices()["again"] is latter
    assert former is not latter


def test_the_code_of_a_class_outside_raydr_is_part_of_keys() -> None:
    """An own loss is changed and trained again: by settings alone its key would stay."""

    class Kind(Component):
        package: ClassVar[str] = "raydr.losses"
        kind: ClassVar[str] = "thing"

        def compute(self) -> float:
            return 0.0

    def define(default: float) -> type[Kind]:
        class Mine(Kind):
            name: Literal["mine"] = "mine"
            factor: float = default

            def compute(self) -> float:
                return self.factor * 2

        return Mine

    class Other(Kind):
        name: Literal["mine"] = "mine"
        factor: float = 0.5

        def compute(self) -> float:
            return self.factor * 3

    class Derived(Other):
        pass

    mine = define(0.5)()
    assert len({content_of(each)["code_checksum"] for each in (mine, define(0.25)(), Other(), Derived())}) == 3
    # A default that changes is a change of the code.
    assert (content_of(mine)["factor"], content_of(define(0.25)())["factor"]) == (0.5, 0.25)
    assert "code_checksum" not in content_of(NCE())
    assert content_of(cloudpickle.loads(cloudpickle.dumps(mine))) == content_of(mine)


def test_two_components_of_a_name_are_refused() -> None:
    class Kind(Component):
        package: ClassVar[str] = "raydr.losses"
        kind: ClassVar[str] = "thing"

    class First(Kind):
        name: Literal["first"] = "first"

    class Derived(First):
        size: int = 3

    with pytest.raises(ConfigError, match=r"two components are the thing 'first': .*First and .*Derived"):
        Kind.choices()
    assert First().name == Derived().name


def test_a_file_that_is_loaded_as_two_modules_defines_a_component_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kind(Component):
        package: ClassVar[str] = "raydr.losses"
        kind: ClassVar[str] = "thing"

    file = tmp_path / "mine.py"
    file.write_text("class Mine(Kind):\n    name: Literal['mine'] = 'mine'\n")
    for name in ("mine", "somewhere.mine"):
        spec = spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        module.__dict__.update(Kind=Kind, Literal=Literal)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
    assert Kind.choices()["mine"].__module__ == "somewhere.mine"
