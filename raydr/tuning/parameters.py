"""What a searched setting may be: a range of numbers, or a list of values; in Optuna's terms for its samplers.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import AfterValidator, Field, model_validator

from raydr.component import Config

RANGES = ("uniform", "loguniform", "int")
LISTS = ("grid", "choice", "times")

#: Digits of a sampled number: more would say nothing and be hard to read.
_DIGITS = 4


@dataclass(frozen=True)
class Parameter:
    """What one setting may be.

    Args:
        distribution: of the numbers of a range, or of the positions in ``values``: whole numbers if near values are
            alike, categories if not.
        values: that can be listed, JSON values that are all different; None for all numbers of a range.
    """

    distribution: FloatDistribution | IntDistribution | CategoricalDistribution
    values: Sequence[Any] | None = None

    @classmethod
    def listed(cls, values: Sequence[Any], ordered: bool) -> Parameter:
        """A list; ``ordered`` if its values are numbers, ascending."""
        positions = IntDistribution(0, len(values) - 1) if ordered else CategoricalDistribution(range(len(values)))
        return cls(positions, values)

    @property
    def log(self) -> bool:
        """Whether it is evenly spread on a logarithmic scale."""
        return isinstance(self.distribution, FloatDistribution) and self.distribution.log

    @property
    def ends(self) -> list[Any]:
        """What has to be valid for every other value to be: the ends of a range, or all of a list."""
        if isinstance(self.distribution, FloatDistribution):
            return [self.distribution.low, self.distribution.high]
        values = self.values or ()
        return [values[0], values[-1]] if isinstance(values, range) else list(values)

    def encode(self, value: Any) -> int | float | None:
        """A value in Optuna's terms; None if it lies outside, as a default may."""
        if self.values is not None:
            text = as_text(value)
            return next((at for at, one in enumerate(self.values) if as_text(one) == text), None)
        low, high = self.ends
        return value if is_number(value) and low <= value <= high else None

    def decode(self, found: Any) -> Any:
        """A value out of Optuna's terms: a number of a range with few digits, and not beyond the ends."""
        if self.values is not None:
            return self.values[found]
        low, high = self.ends
        return min(max(round_digits(found), low), high)


def encode(parameters: Mapping[str, Parameter], values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Values in Optuna's terms; None if one of them lies outside."""
    found = {key: one.encode(values[key]) for key, one in parameters.items()}
    return None if None in found.values() else found


def distributions(parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """By key."""
    return {key: one.distribution for key, one in parameters.items()}


def _ascending(numbers: list[float]) -> list[float]:
    if not numbers or numbers != sorted(set(numbers)):
        raise ValueError("takes different numbers in ascending order")
    return numbers


class Entry(Config):
    """One entry of a space, as it is written."""

    uniform: tuple[float, float] | None = None
    loguniform: tuple[float, float] | None = None
    whole: tuple[int, int] | None = Field(default=None, alias="int")
    grid: Annotated[list[float], AfterValidator(_ascending)] | None = None
    choice: list[Any] | None = Field(default=None, min_length=1)
    times: Annotated[list[float], AfterValidator(_ascending)] | None = None
    steps: int | None = Field(default=None, ge=2)

    @model_validator(mode="before")
    @classmethod
    def _has_one_name(cls, given: Any) -> Any:
        names = set(given) - {"steps"} if isinstance(given, Mapping) else set()
        if len(names) != 1 or not names <= {*RANGES, *LISTS}:
            allowed, example = ", ".join(RANGES + LISTS), "{uniform: [0, 1]} or {choice: [a, b]}"
            raise ValueError(f"expected one of {allowed} with its values, for example {example}")
        if "steps" in given and not names <= set(RANGES):
            raise ValueError(f"steps is for {', '.join(RANGES)}; a {names.pop()} lists its values already")
        return given

    def parameter(self, current: Any) -> Parameter:
        """What it means for a setting.

        Args:
            current: the setting's value in the config, which ``times`` multiplies.

        Raises:
            ValueError: its numbers make no sense, here or to Optuna.
        """
        if self.choice is not None:
            if len({as_text(value) for value in self.choice}) < len(self.choice):
                raise ValueError("choice names a value twice")
            return Parameter.listed(self.choice, ordered=False)
        if self.times is not None and (not is_number(current) or current == 0):
            raise ValueError(f"times multiplies what the config says, which is {current!r} and no number to multiply")
        if numbers := self.grid or [round_digits(factor * current) for factor in self.times or []]:
            whole = all(number.is_integer() for number in numbers) and not isinstance(current, float)
            return Parameter.listed([int(number) if whole else number for number in numbers], ordered=True)
        low, high = self.whole or self.uniform or self.loguniform or (0, 0)
        log = self.loguniform is not None
        # Optuna says what is wrong with the ends.
        found = Parameter(FloatDistribution(low, high, log))
        if self.steps is None:
            return found if self.whole is None else Parameter.listed(range(int(low), int(high) + 1), ordered=True)
        spread = (np.geomspace if log else np.linspace)(low, high, self.steps).tolist()
        values = {found.decode(value) if self.whole is None else round(value) for value in spread}
        if len(values) < self.steps:
            raise ValueError(f"there are no {self.steps} different values between {low:g} and {high:g}; lower steps")
        return Parameter.listed(sorted(values), ordered=True)


def round_digits(value: float) -> float:
    """
    >>> round_digits(0.00012345678), round_digits(3.0), round_digits(0.0)
    (0.0001235, 3.0, 0.0)
    """
    return float(f"{value:.{_DIGITS}g}")


def is_number(value: Any) -> bool:
    """
    >>> is_number(1), is_number(0.5), is_number(True), is_number("1")
    (True, True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool)


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
