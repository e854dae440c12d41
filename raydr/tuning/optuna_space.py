"""A space in Optuna's terms: for its sampler and its importances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from raydr.tuning.distributions import Distribution, Range
from raydr.tuning.trials import Trial

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


def to_optuna(distribution: Distribution) -> BaseDistribution:
    """Lists become the positions in them: whole numbers if they are ordered, categories if not."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(distribution, Range):
        if distribution.integer:
            return IntDistribution(int(distribution.low), int(distribution.high))
        return FloatDistribution(distribution.low, distribution.high, log=distribution.log)
    if distribution.ordered and len(distribution.values) > 1:
        return IntDistribution(0, len(distribution.values) - 1)
    return CategoricalDistribution(range(len(distribution.values)))


def encode(parameters: Mapping[str, Distribution], values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Values in Optuna's terms; None if one of them lies outside, as a default may."""
    encoded = {}
    for key, distribution in parameters.items():
        value = values[key]
        if not distribution.contains(value):
            return None
        encoded[key] = value if isinstance(distribution, Range) else distribution.position(value)
    return encoded


def decode(parameters: Mapping[str, Distribution], params: Mapping[str, Any]) -> dict[str, Any]:
    """Values out of Optuna's terms."""
    return {
        key: distribution.clean(params[key]) if isinstance(distribution, Range) else distribution.values[params[key]]
        for key, distribution in parameters.items()
    }


def past_trials(parameters: Mapping[str, Distribution], trials: Iterable[Trial]) -> list[FrozenTrial]:
    """Trials as Optuna remembers them: stopped ones as pruned at their last epoch; failed ones are left out."""
    from optuna.trial import TrialState, create_trial

    distributions = {key: to_optuna(distribution) for key, distribution in parameters.items()}
    found = []
    for trial in trials:
        params = encode(parameters, trial.values)
        if params is None or trial.status == "failed":
            continue
        if trial.status == "finished":
            found.append(create_trial(value=trial.score, params=params, distributions=distributions))
        elif trial.status == "stopped":
            scores = {row.epoch: row.score for row in trial.rows}
            found.append(
                create_trial(
                    state=TrialState.PRUNED, params=params, distributions=distributions, intermediate_values=scores
                )
            )
        else:
            found.append(create_trial(state=TrialState.RUNNING, params=params, distributions=distributions))
    return found
