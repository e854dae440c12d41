"""What a searched setting may be: a range of numbers, or a list of values.

In a space file each is written as a mapping with one key, the name of the distribution::

    model.scale: {uniform: [10, 50]}
    train.optimizer.learning_rate: {loguniform: [1.0e-5, 1.0e-3], steps: 5}
    train.loss.warmup_epochs: {int: [1, 3]}
    train.num_hard_negatives: {grid: [1, 2, 4, 8]}
    train.sampler: {choice: [top, {name: simans, a: 0.5}]}
    train.optimizer.learning_rate: {times: [0.3, 1, 3]}

``uniform``, ``loguniform`` and ``int`` are ranges, both ends included; with ``steps`` only so many evenly spread values
of them are tried. ``grid`` is a list of numbers in order, ``choice`` a list of anything, ``times`` a grid of multiples
of what the config says.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raydr.errors import ConfigError

RANGES = ("uniform", "loguniform", "int")
LISTS = ("grid", "choice", "times")

#: Digits of a sampled number: more would say nothing and be hard to read.
_DIGITS = 4


@dataclass(frozen=True)
class Range:
    """All numbers between two ends.

    Args:
        low, high: the ends, both included.
        log: evenly spread on a logarithmic scale.
        integer: whole numbers only.
    """

    low: float
    high: float
    log: bool = False
    integer: bool = False

    @property
    def ends(self) -> list[Any]:
        """What has to be valid for every value between to be."""
        return [self.clean(self.low), self.clean(self.high)]

    def all_values(self) -> list[Any] | None:
        """None if they cannot be listed."""
        return list(range(int(self.low), int(self.high) + 1)) if self.integer else None

    def draw(self, rng: np.random.Generator) -> Any:
        """One value, with few digits."""
        if self.integer:
            return int(rng.integers(int(self.low), int(self.high), endpoint=True))
        if self.log:
            return self.clean(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))
        return self.clean(rng.uniform(self.low, self.high))

    def contains(self, value: Any) -> bool:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and self.low <= value <= self.high and (not self.integer or float(value).is_integer())

    def clean(self, value: float) -> Any:
        """A number of the range as it is tried: rounded, and not beyond the ends."""
        if self.integer:
            return round(value)
        return float(min(max(round_digits(value), self.low), self.high))


@dataclass(frozen=True)
class Values:
    """A list.

    Args:
        values: JSON values, all different.
        ordered: they are numbers, ascending, and near ones are alike.
        log: they are spread on a logarithmic scale.
    """

    values: tuple[Any, ...]
    ordered: bool = False
    log: bool = False

    @property
    def ends(self) -> list[Any]:
        return list(self.values)

    def all_values(self) -> list[Any] | None:
        return list(self.values)

    def draw(self, rng: np.random.Generator) -> Any:
        return self.values[int(rng.integers(len(self.values)))]

    def contains(self, value: Any) -> bool:
        return self.position(value) is not None

    def position(self, value: Any) -> int | None:
        """Where a value stands in the list; None if it does not."""
        text = as_text(value)
        return next((at for at, one in enumerate(self.values) if as_text(one) == text), None)


Distribution = Range | Values


def parse_distribution(key: str, raw: Any, current: Any) -> Distribution:
    """Read one entry of a space.

    Args:
        key: the setting, for messages.
        raw: as in the space file.
        current: the setting's value in the config, which ``times`` multiplies.

    Raises:
        ConfigError: it is none of the distributions, or its numbers make no sense.
    """
    if not isinstance(raw, Mapping) or len(named := set(raw) - {"steps"}) != 1:
        raise ConfigError(f"{key}: expected one of {_NAMES} with its values, for example {_EXAMPLE}; got {raw!r}")
    name = named.pop()
    if name in RANGES:
        return _range(key, str(name), raw[name], raw.get("steps"))
    if name not in LISTS:
        raise ConfigError(f"{key}: there is no distribution {name!r}; allowed: {_NAMES}")
    if "steps" in raw:
        raise ConfigError(f"{key}: steps is for {', '.join(RANGES)}; a {name} lists its values already")
    return _list(key, str(name), raw[name], current)


_NAMES = ", ".join(RANGES + LISTS)
_EXAMPLE = "{uniform: [0, 1]} or {choice: [a, b]}"


def _range(key: str, name: str, raw: Any, steps: Any) -> Distribution:
    ends = _numbers(key, name, raw)
    if len(ends) != 2 or not ends[0] < ends[1]:
        raise ConfigError(f"{key}: {name} takes its two ends, the lower first; got {raw!r}")
    low, high = ends
    if name == "loguniform" and low <= 0:
        raise ConfigError(f"{key}: loguniform needs ends above 0; got {raw!r}")
    if name == "int" and not (low.is_integer() and high.is_integer()):
        raise ConfigError(f"{key}: int takes whole numbers; got {raw!r}")
    found = Range(low, high, log=name == "loguniform", integer=name == "int")
    if steps is None:
        return found
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 2:
        raise ConfigError(f"{key}: steps is a whole number from 2 on; got {steps!r}")
    spread = np.geomspace(low, high, steps) if found.log else np.linspace(low, high, steps)
    values = tuple(dict.fromkeys(found.clean(float(value)) for value in spread))
    if len(values) < steps:
        raise ConfigError(f"{key}: there are no {steps} different values between {low:g} and {high:g}; lower steps")
    return Values(values, ordered=True, log=found.log)


def _list(key: str, name: str, raw: Any, current: Any) -> Values:
    if name == "choice":
        if not isinstance(raw, Sequence) or isinstance(raw, str) or not raw:
            raise ConfigError(f"{key}: choice takes a list of values; got {raw!r}")
        values = tuple(raw)
        if len({as_text(value) for value in values}) < len(values):
            raise ConfigError(f"{key}: choice names a value twice: {raw!r}")
        return Values(values)
    numbers = _numbers(key, name, raw)
    if name == "times":
        if not isinstance(current, int | float) or isinstance(current, bool) or current == 0:
            raise ConfigError(
                f"{key}: times multiplies what the config says, which is {current!r} and no number to multiply"
            )
        numbers = [round_digits(factor * current) for factor in numbers]
    if not numbers or numbers != sorted(set(numbers)):
        raise ConfigError(f"{key}: {name} takes different numbers in ascending order; got {raw!r}")
    whole = all(number.is_integer() for number in numbers) and not isinstance(current, float)
    values = tuple(int(number) if whole else number for number in numbers)
    return Values(values, ordered=True, log=_is_logarithmic(numbers))


def _numbers(key: str, name: str, raw: Any) -> list[float]:
    """Numbers of a list; also those that YAML takes for text, such as 1e-4."""
    if isinstance(raw, Sequence) and not isinstance(raw, str):
        try:
            numbers = [float(one) for one in raw if not isinstance(one, bool)]
        except (TypeError, ValueError):
            numbers = []
        if len(numbers) == len(raw) and all(math.isfinite(number) for number in numbers):
            return numbers
    raise ConfigError(f"{key}: {name} takes a list of numbers; got {raw!r}")


def _is_logarithmic(numbers: Sequence[float]) -> bool:
    """Whether the steps between positive numbers grow with them."""
    return len(numbers) > 2 and numbers[0] > 0 and numbers[-1] / numbers[0] >= 8


def round_digits(value: float) -> float:
    """
    >>> round_digits(0.00012345678), round_digits(3.0), round_digits(0.0)
    (0.0001235, 3.0, 0.0)
    """
    return float(f"{value:.{_DIGITS}g}")


def as_text(value: Any) -> str:
    """A value as one short line, equal for equal values.

    >>> as_text({"name": "rcl", "beta": 0.5}), as_text("top"), as_text(0.25), as_text([])
    ('rcl(beta=0.5)', 'top', '0.25', 'none')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        settings = ", ".join(f"{key}={as_text(one)}" for key, one in value.items() if key != "name")
        name = str(value.get("name", ""))
        return f"{name}({settings})" if settings else name
    if isinstance(value, list | tuple):
        return " + ".join(as_text(one) for one in value) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value)
