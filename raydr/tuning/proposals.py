"""Which values the next trial has, from its number and what earlier trials came to.

A proposal depends on nothing else: a search that was killed and goes on proposes the same random and grid trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, product
from typing import Any

import optuna
from optuna.samplers import RandomSampler, TPESampler
from optuna.trial import TrialState, create_trial

from raydr.errors import ConfigError
from raydr.seeding import stable_hash64
from raydr.tuning.parameters import as_text, distributions, encode
from raydr.tuning.space import Space
from raydr.tuning.trial_config import with_values
from raydr.tuning.trials import Trial

#: Trials of a search that does not say how many.
NUM_TRIALS = 16
#: Combinations of a grid that are checked before it starts, and that it may have.
_CHECKED, _MOST = 2000, 100_000
#: What Optuna calls a trial's status; it learns nothing from failed ones.
_STATES = {"finished": TrialState.COMPLETE, "stopped": TrialState.PRUNED, "running": TrialState.RUNNING}


def num_trials(space: Space) -> int:
    """Trials of the search, the default among them.

    Raises:
        ConfigError: a grid has ranges that cannot be listed, or its number of trials is given.
    """
    search = space.settings.search
    if search.algorithm != "grid":
        return search.num_trials or NUM_TRIALS
    endless = [key for key, one in space.parameters.items() if one.values is None]
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
    search, parameters = space.settings.search, space.parameters
    if number == 0:
        return dict(space.defaults)
    if search.algorithm == "grid":
        return _grid(space)[number - 1]
    seed = stable_hash64("tune", space.config.seed, number) % 2**32
    learns = search.algorithm == "tpe" and number > search.num_random
    sampler = TPESampler(seed=seed, n_startup_trials=1, constant_liar=True) if learns else RandomSampler(seed)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for trial in trials if learns else []:
        params = encode(parameters, trial.values)
        if params is None or trial.status not in _STATES:
            continue
        study.add_trial(
            create_trial(
                state=_STATES[trial.status],
                value=trial.score if trial.status == "finished" else None,
                params=params,
                distributions=distributions(parameters),
                intermediate_values={row.epoch: row.score for row in trial.rows},
            )
        )
    asked = study.ask(distributions(parameters))
    return {key: one.decode(asked.params[key]) for key, one in parameters.items()}


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
    lists = [one.values or [] for one in space.parameters.values()]
    default = [as_text(value) for value in space.defaults.values()]
    combinations = (found for found in product(*lists) if [as_text(value) for value in found] != default)
    found = [dict(zip(space.parameters, values, strict=True)) for values in islice(combinations, _MOST + 1)]
    if len(found) > _MOST:
        raise ConfigError(f"the grid of {space.name} has more than {_MOST:,} combinations: leave some values out")
    return found
