import pytest
from pydantic import ValidationError

from raydr.losses.rcl import BetaSchedule


def test_constant_starts_at_its_epoch():
    schedule = BetaSchedule(final=0.5, start_epoch=2)
    assert [schedule.value(epoch) for epoch in range(4)] == [0.0, 0.0, 0.5, 0.5]


def test_ramp_reaches_final_and_stays():
    schedule = BetaSchedule(final=0.75, start_epoch=1, ramp_epochs=3)
    assert [schedule.value(epoch) for epoch in range(6)] == pytest.approx([0.0, 0.25, 0.5, 0.75, 0.75, 0.75])


def test_a_number_stands_for_a_constant():
    assert BetaSchedule.model_validate(0.3) == BetaSchedule(final=0.3)


@pytest.mark.parametrize("settings", [{"final": 1.5}, {"final": -0.1}, True, "0.3"])
def test_bad_settings_are_refused(settings):
    with pytest.raises(ValidationError):
        BetaSchedule.model_validate(settings)
