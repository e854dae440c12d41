from __future__ import annotations

import pytest

from raydr.component import Component, Config
from raydr.training.config import TrainConfig


def _subclasses(kind: type[Config]) -> set[type[Config]]:
    return {kind}.union(*map(_subclasses, kind.__subclasses__()))


@pytest.mark.invariant
def test_what_came_later_is_a_setting_and_stands_for_the_default() -> None:
    """Left out of a fingerprint under another value, a setting would change what is made and not its name."""
    for base in Component.__subclasses__():
        base.choices()
    later = {(kind, name, value) for kind in _subclasses(Config) for name, value in kind.added_later.items()}
    assert later
    for kind, name, value in later:
        assert kind.model_fields[name].default == value, f"{kind.__name__}.{name}"


@pytest.mark.invariant
@pytest.mark.parametrize("sampler", ["top", {"name": "mixed", "hard": "top"}])
def test_a_setting_that_came_later_does_not_tell_older_trainings_apart(sampler: object) -> None:
    """However deep it stands; shown and saved it is all the same."""
    train = TrainConfig.model_validate({"sampler": sampler})
    assert "'fill'" not in str(train.fingerprint_settings())
    assert "'fill': True" in str(train.model_dump(mode="json"))
    assert TrainConfig.model_validate(train.model_dump(mode="json")) == train
    changed = TrainConfig.model_validate({"sampler": {"name": "top", "fill": False}})
    assert changed.fingerprint_settings()["sampler"] == {
        "name": "top",
        "first_rank": 1,
        "last_rank": None,
        "fill": False,
    }
