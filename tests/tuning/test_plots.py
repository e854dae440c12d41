"""Where values stand on the axis of a search's setting."""

from __future__ import annotations

from typing import Any

import pytest

from raydr.tuning.distributions import Range, Values
from raydr.tuning.plots import position


@pytest.mark.parametrize(
    ("one", "value", "place"),
    [
        (Range(1e-4, 1e-2, log=True), 1e-3, 0.5),
        (Range(1e-4, 1e-2, log=True), 0, -0.05),
        (Range(1e-4, 1e-2, log=True), 1, 1.05),
        (Range(0.0, 0.3), None, -0.05),
        (Range(2, 4, integer=True), 3, 0.5),
        (Values((0.1, 0.2, 0.4), ordered=True), 0.4, 1.0),
        (Values(("a", "b")), "c", -0.05),
    ],
)
def test_a_default_that_is_not_in_the_range_stands_beside_it(one: Any, value: Any, place: float) -> None:
    assert position(one, value) == pytest.approx(place)
