"""Where values stand on the axis of a search's setting."""

from __future__ import annotations

from typing import Any

import pytest

from raydr.tuning.parameters import Entry
from raydr.tuning.plots import position, ticks


@pytest.mark.parametrize(
    ("entry", "value", "place"),
    [
        ({"loguniform": [1e-4, 1e-2]}, 1e-3, 0.5),
        ({"loguniform": [1e-4, 1e-2]}, 0, -0.05),
        ({"loguniform": [1e-4, 1e-2]}, 1, 1.05),
        ({"uniform": [0.0, 0.3]}, None, -0.05),
        ({"int": [2, 4]}, 3, 0.5),
        ({"grid": [0.1, 0.2, 0.4]}, 0.4, 1.0),
        ({"choice": ["a", "b"]}, "c", -0.05),
    ],
)
def test_a_default_that_is_not_in_the_range_stands_beside_it(entry: dict[str, Any], value: Any, place: float) -> None:
    assert position(Entry.model_validate(entry).parameter(None), value) == pytest.approx(place)


def test_long_ranges_are_labelled_at_their_ends_and_between() -> None:
    found = ticks(Entry.model_validate({"int": [0, 100]}).parameter(None))
    assert found == [(0.0, "0"), (0.5, "50"), (1.0, "100")]
    assert [place for place, _ in ticks(Entry.model_validate({"grid": [1, 2, 8]}).parameter(None))] == [0.0, 0.5, 1.0]
