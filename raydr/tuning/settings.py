"""Space files: the distributions of searched settings, and the settings of the search.

A distribution is a mapping whose key is its name::

    model.scale: {uniform: [10, 50]}
    train.optimizer.learning_rate: {loguniform: [1.0e-5, 1.0e-3], steps: 5}
    train.loss.warmup_epochs: {int: [1, 3]}
    train.num_hard_negatives: {grid: [1, 2, 4, 8]}
    train.sampler: {choice: [top, {name: simans, a: 0.5}]}
    train.optimizer.learning_rate: {times: [0.3, 1, 3]}

``uniform``, ``loguniform`` and ``int`` are ranges, both ends included; ``steps`` restricts them to that many evenly
spread values. ``grid`` is an ascending list of numbers, ``choice`` a list of any values, ``times`` a grid of multiples
of the config's value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from optuna import Trial
from optuna.distributions import FloatDistribution
from pydantic import AfterValidator, Field, model_validator

from raydr.component import Config

RANGES = ("uniform", "loguniform", "int")
LISTS = ("grid", "choice", "times")
Objective = Literal["training", "refresh"]

#: Significant digits of a sampled number, so that it is easy to read, and of a multiple, without binary rounding.
_DIGITS, _DIGITS_OF_MULTIPLES = 4, 12


@dataclass(frozen=True)
class Parameter:
    """The distribution of a searched setting.

    Args:
        ends: values to validate, which stand for all others: the ends of a range, or all values of a list.
        values: the listed values, all different JSON values; None for all numbers of a range.
        ordered: listed values are ascending numbers, and neighbours have similar effects.
        log: a range is sampled on a logarithmic scale.
    """

    ends: Sequence[Any]
    values: Sequence[Any] | None = None
    ordered: bool = False
    log: bool = False

    def suggest(self, trial: Trial, key: str) -> Any:
        """Return the value that Optuna's sampler suggests for a trial; numbers of a range are rounded."""
        if self.values is None:
            return self.rounded(trial.suggest_float(key, *self.ends, log=self.log))
        places = range(len(self.values))
        return self.values[
            trial.suggest_int(key, 0, places[-1]) if self.ordered else trial.suggest_categorical(key, places)
        ]

    def encode(self, value: Any) -> int | float | None:
        """Convert a value to Optuna's number or index; return None if it lies outside, as a default may."""
        if self.values is not None:
            text = as_text(value)
            return next((index for index, listed in enumerate(self.values) if as_text(listed) == text), None)
        return value if is_number(value) and self.ends[0] <= value <= self.ends[1] else None

    @property
    def between(self) -> list[float]:
        """A number between the ends of a range, which is also validated and is seldom whole; empty for a list."""
        low, high = self.ends[0], self.ends[-1]
        return [] if self.values is not None else [self.rounded(low + (high - low) / math.pi)]

    def rounded(self, value: float) -> float:
        """Round a number of a range to few digits, within the ends."""
        low, high = self.ends
        return float(min(max(round_digits(value), low), high))


def _ascending(numbers: list[float]) -> list[float]:
    if not numbers or numbers != sorted(set(numbers)):
        raise ValueError("takes different numbers in ascending order")
    return numbers


class Entry(Config):
    """An entry of a space file."""

    uniform: tuple[float, float] | None = None
    loguniform: tuple[float, float] | None = None
    whole: tuple[int, int] | None = Field(default=None, alias="int")
    grid: Annotated[list[float], AfterValidator(_ascending)] | None = None
    choice: list[Any] | None = Field(default=None, min_length=1)
    times: Annotated[list[float], AfterValidator(_ascending)] | None = None
    steps: int | None = Field(default=None, ge=2)

    @model_validator(mode="before")
    @classmethod
    def _has_a_single_name(cls, raw: Any) -> Any:
        names = set(raw) - {"steps"} if isinstance(raw, Mapping) else set()
        if len(names) != 1 or not names <= {*RANGES, *LISTS}:
            allowed, example = ", ".join(RANGES + LISTS), "{uniform: [0, 1]} or {choice: [a, b]}"
            raise ValueError(f"expected one of {allowed} with its values, for example {example}")
        if "steps" in raw and not names <= set(RANGES):
            raise ValueError(f"steps is for {', '.join(RANGES)}; a {names.pop()} lists its values already")
        return raw

    def parameter(self, current: Any) -> Parameter:
        """Return the distribution of a setting.

        Args:
            current: the setting's value in the config, which ``times`` multiplies.

        Raises:
            ValueError: raydr or Optuna does not accept the numbers.
        """
        if self.choice is not None:
            if len({as_text(value) for value in self.choice}) < len(self.choice):
                raise ValueError("choice names a value twice")
            return Parameter(self.choice, self.choice)
        if self.times is not None and (not is_number(current) or current == 0):
            raise ValueError(f"times multiplies the config's value, which is {current!r}: set a number other than 0")
        multiples = [round_digits(factor * current, _DIGITS_OF_MULTIPLES) for factor in self.times or []]
        if numbers := self.grid or multiples:
            whole = all(number.is_integer() for number in numbers) and not isinstance(current, float)
            listed = [int(number) if whole else number for number in numbers]
            return Parameter(listed, listed, ordered=True)
        low, high = self.whole or self.uniform or self.loguniform or (0, 0)
        log = self.loguniform is not None
        # Optuna checks the ends.
        FloatDistribution(low, high, log)
        full = Parameter((low, high), range(int(low), int(high) + 1) if self.whole else None, bool(self.whole), log)
        if self.steps is None:
            return full
        spread = (np.geomspace if log else np.linspace)(low, high, self.steps).tolist()
        values = sorted({round(value) if self.whole else full.rounded(value) for value in spread})
        if len(values) < self.steps:
            raise ValueError(f"there are no {self.steps} different values between {low:g} and {high:g}; lower steps")
        return Parameter(values, values, ordered=True)


class SearchConfig(Config):
    """The choice of trials. The first trial is always the default: the unchanged config."""

    algorithm: Literal["tpe", "random", "grid"] = "tpe"
    """``tpe``: Optuna's tree-structured Parzen estimator, which learns from earlier trials; ``random``; ``grid``: every
    combination of listed values."""

    num_trials: int | None = Field(default=None, ge=2)
    """Number of trials with the default; must be left out for a grid, which has a trial for each combination."""

    num_random: int = Field(default=8, ge=1)
    """Number of trials that ``tpe`` draws at random before it learns."""


class SchedulerConfig(Config):
    """The early stopping of trials, by the dev measure after each epoch (of refreshes: after each round)."""

    name: Literal["asha", "none"] = "asha"
    """``asha``: at epochs grace, grace · factor, ... only the best 1/factor continue; ``none``: all trials are trained
    to their end."""

    grace_epochs: int | None = Field(default=None, ge=1)
    """Epochs before a trial may be stopped; the longest warm-up of the space plus 1 if null."""

    reduction_factor: float = Field(default=2, gt=1)
    """The factor of ``asha``: 2 lets half of the trials continue at each of its epochs."""


class TrialsConfig(Config):
    """The execution of trials; it does not change their results."""

    concurrency: int | None = Field(default=None, ge=1)
    """Number of trials at a time; as many as the machine or the cluster can hold if null."""

    max_failures: int = Field(default=1, ge=0)
    """Number of retries of a trial before it counts as failed; the loss of a node does not count as a try."""


class ConfirmConfig(Config):
    """The confirmation of a gain: the best config and the default with other seeds, evaluated on dev and test."""

    num_seeds: int = Field(default=0, ge=0)
    """Number of seeds with which each of the two is trained; 0 for no confirmation."""


class TuneConfig(Config):
    """The content of a space file."""

    description: str = ""
    """The searched settings, in a sentence."""

    objective: Objective = "training"
    """A trial is a training, or all rounds of the config's section ``refresh``."""

    requires: dict[str, Any] = {}
    """Settings that the config must have, by dotted key."""

    fixed: dict[str, Any] = {}
    """Settings of all trials, also of the default; they change the config as ``variants`` do."""

    space: dict[str, Entry]
    """Distributions by dotted key."""

    search: SearchConfig = SearchConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    trials: TrialsConfig = TrialsConfig()
    confirm: ConfirmConfig = ConfirmConfig()


def round_digits(value: float, digits: int = _DIGITS) -> float:
    """Round a number to significant digits.

    >>> round_digits(0.00012345678), round_digits(3.0), round_digits(0.0)
    (0.0001235, 3.0, 0.0)
    """
    return float(f"{value:.{digits}g}")


def is_number(value: Any) -> bool:
    """Return whether a value is a number.

    >>> is_number(1), is_number(0.5), is_number(True), is_number("1")
    (True, True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_text(value: Any) -> str:
    """Format a value as a short text; equal values have equal texts.

    >>> as_text({"name": "rcl", "beta": 0.5}), as_text("top"), as_text(0.25), as_text([])
    ('rcl(beta=0.5)', 'top', '0.25', 'none')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        settings = ", ".join(f"{key}={as_text(setting)}" for key, setting in value.items() if key != "name")
        name = str(value.get("name", ""))
        return f"{name}({settings})" if settings else name
    if isinstance(value, list | tuple):
        return " + ".join(as_text(item) for item in value) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value)
