"""How population based training changes the settings that a bad trial takes over from a good one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from raydr.tuning.distributions import Distribution, Range

#: Chance that a setting is drawn anew, and factors that a number is multiplied by otherwise (Jaderberg et al., 2017).
_REDRAWN, _FACTORS = 0.25, (0.8, 1.2)


def mutate(
    parameters: Mapping[str, Distribution], values: Mapping[str, Any], rng: np.random.Generator
) -> dict[str, Any]:
    """Changed values, each within its distribution.

    A number of a range is multiplied by 0.8 or 1.2, a listed number gives way to a neighbour; sometimes a setting is
    drawn anew, the only change for one that has no order.
    """
    return {key: _mutated(one, values[key], rng) for key, one in parameters.items()}


def _mutated(one: Distribution, value: Any, rng: np.random.Generator) -> Any:
    if rng.random() < _REDRAWN or not one.contains(value):
        return one.draw(rng)
    if isinstance(one, Range):
        if one.integer:
            return int(np.clip(value + rng.choice((-1, 1)), one.low, one.high))
        return one.clean(value * float(rng.choice(_FACTORS)))
    position = one.position(value)
    if not one.ordered or position is None:
        return value
    return one.values[int(np.clip(position + rng.choice((-1, 1)), 0, len(one.values) - 1))]
