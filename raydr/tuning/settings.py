"""Settings of a search, as they stand in a space file beside the space itself."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from raydr.component import Config
from raydr.tuning.parameters import Entry

Objective = Literal["training", "refresh"]


class SearchConfig(Config):
    """Which trials are made. The first is always the default: the config as it is."""

    algorithm: Literal["tpe", "random", "grid"] = "tpe"
    """``tpe``: Optuna's tree-structured Parzen estimator, which learns from earlier trials; ``random``; ``grid``: every
    combination of listed values."""

    num_trials: int | None = Field(default=None, ge=2)
    """Trials, the default among them; for a grid it is the number of combinations and must be left out."""

    num_random: int = Field(default=8, ge=1)
    """Trials that ``tpe`` draws at random before it learns."""


class SchedulerConfig(Config):
    """Which trials are stopped early, by the dev measure after each epoch; each round, where refreshes are searched."""

    name: Literal["asha", "median", "none"] = "asha"
    """``asha``: at epochs grace, grace · factor, ... only the best 1/factor go on; ``median``: a trial is stopped when
    its best value is below the median of the others' means; ``none``: all trials are trained to their end."""

    grace_epochs: int | None = Field(default=None, ge=1)
    """Epochs before anything is stopped; one more than the longest warm-up of the space if null."""

    reduction_factor: float = Field(default=2, gt=1)
    """``asha``: of the trials that reach a rung, one in so many goes on."""

    min_trials: int = Field(default=3, ge=2)
    """``median``: trials that a median is taken over, at least."""


class TrialsConfig(Config):
    """How trials are run; does not change what they find."""

    concurrency: int | None = Field(default=None, ge=1)
    """Trials at a time; as many as the machine or the cluster holds if null."""

    max_failures: int = Field(default=1, ge=0)
    """Further tries of a trial that died, before it is recorded as failed; the loss of a node does not count."""

    max_wait_s: float = Field(default=3600.0, gt=0)
    """Seconds that a trial waits for its CPUs and GPUs before the search ends and says who holds them."""


class ConfirmConfig(Config):
    """Whether the gain is real: the best config and the default trained anew, evaluated on dev and once on test."""

    num_seeds: int = Field(default=0, ge=0)
    """Trainings of each, with different seeds; 0 leaves it out."""


class TuneConfig(Config):
    """One space file."""

    description: str = ""
    """What is searched, in a sentence."""

    objective: Objective = "training"
    """What a trial is: one training, or all rounds of the config's section ``refresh``."""

    requires: dict[str, Any] = {}
    """Settings that the config must have for the space to make sense, by dotted key."""

    fixed: dict[str, Any] = {}
    """Settings that every trial has, the default one too; they change the config as ``variants`` do."""

    space: dict[str, Entry]
    """Distributions by dotted key, see :mod:`raydr.tuning.parameters`."""

    search: SearchConfig = SearchConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    trials: TrialsConfig = TrialsConfig()
    confirm: ConfirmConfig = ConfirmConfig()
