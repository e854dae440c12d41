"""Which values the next trial has, from its number and what earlier trials came to.

A proposal depends on nothing else: a search that was killed and goes on proposes the same random and grid trials.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import islice, product
from typing import Any

import numpy as np

from raydr.errors import ConfigError
from raydr.seeding import stable_hash64
from raydr.tuning.distributions import Distribution, as_text
from raydr.tuning.optuna_space import decode, past_trials, to_optuna
from raydr.tuning.space import Space
from raydr.tuning.trial_config import with_values
from raydr.tuning.trials import Trial

#: Trials of a search that does not say how many.
NUM_TRIALS = 16
#: Combinations of a grid that are checked before it starts.
_CHECKED = 2000


def num_trials(space: Space) -> int:
    """Trials of the search, the default among them.

    Raises:
        ConfigError: a grid has ranges that cannot be listed, or its number of trials is given.
    """
    search = space.settings.search
    if search.algorithm != "grid":
        return search.num_trials or NUM_TRIALS
    endless = [key for key, distribution in space.parameters.items() if distribution.all_values() is None]
    if endless:
        raise ConfigError(
            f"search.algorithm grid tries every combination, but {', '.join(endless)} is a range: give it steps, or a "
            "grid of numbers"
        )
    if search.num_trials is not None:
        raise ConfigError("search.num_trials is given, but a grid has as many trials as combinations: leave it out")
    return 1 + len(_grid(space))


def propose(space: Space, number: int, trials: Sequence[Trial]) -> dict[str, Any]:
    """The values of a trial.

    Args:
        space: what is searched.
        number: of the trial; 0 is the default.
        trials: all earlier ones, the running ones too.
    """
    if number == 0:
        return dict(space.defaults)
    search = space.settings.search
    if search.algorithm == "grid":
        return _grid(space)[number - 1]
    if search.algorithm == "random" or number <= search.num_random:
        rng = np.random.default_rng(stable_hash64("tune", space.config.seed, number))
        return {key: distribution.draw(rng) for key, distribution in space.parameters.items()}
    return _ask_optuna(space, number, trials)


def check_proposals(space: Space) -> None:
    """Look at the proposals that are known beforehand.

    Raises:
        ConfigError: values that are valid one by one are not together.
    """
    search = space.settings.search
    total = num_trials(space)
    known = min(total, search.num_random + 1) if search.algorithm == "tpe" else min(total, _CHECKED)
    for number in range(known):
        with_values(space.config, propose(space, number, []))


def _grid(space: Space) -> list[dict[str, Any]]:
    """All combinations but the default, the last parameter changing fastest."""
    lists = [distribution.all_values() or [] for distribution in space.parameters.values()]
    combinations = (dict(zip(space.parameters, values, strict=True)) for values in product(*lists))
    default = _key(space.defaults)
    found = [values for values in islice(combinations, 100_001) if _key(values) != default]
    if len(found) > 100_000:
        raise ConfigError(f"the grid of {space.name} has more than 100,000 combinations: leave some values out")
    return found


def _key(values: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(as_text(value) for value in values.values())


def _ask_optuna(space: Space, number: int, trials: Sequence[Trial]) -> dict[str, Any]:
    import optuna

    logging.getLogger("optuna").setLevel(logging.ERROR)
    seed = stable_hash64("tpe", space.config.seed, number) % 2**32
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=1, constant_liar=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for past in past_trials(space.parameters, trials):
        study.add_trial(past)
    asked = study.ask({key: to_optuna(distribution) for key, distribution in space.parameters.items()})
    return decode(space.parameters, asked.params)


def describe(parameters: Mapping[str, Distribution]) -> list[tuple[str, str]]:
    """Each parameter with its distribution, for people."""
    rows = []
    for key, distribution in parameters.items():
        values = distribution.all_values()
        if values is not None and len(values) <= 12:
            rows.append((key, ", ".join(as_text(value) for value in values)))
        else:
            low, high = (as_text(end) for end in (distribution.ends[0], distribution.ends[-1]))
            rows.append((key, f"{low} to {high}" + (", logarithmic" if distribution.log else "")))
    return rows
