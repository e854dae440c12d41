"""Which settings matter: how much of the variance of the score each explains (fANOVA).

fANOVA (Hutter et al., ICML 2014), as Optuna computes it: a random forest is fitted to the trials, and the variance of
its prediction over the space is split among the parameters. With few trials a forest finds something in noise too, so
that each share stands beside the one that it reaches by chance, with the scores shuffled among the trials.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raydr.tuning.distributions import Distribution
from raydr.tuning.optuna_space import encode, to_optuna
from raydr.tuning.trials import Trial, common_epoch

#: Trials below which nothing can be said.
MIN_TRIALS = 6
#: Shuffles that the share by chance is taken from, and its quantile.
_SHUFFLES, _QUANTILE = 20, 0.95
_TREES = 32


@dataclass(frozen=True)
class Importance:
    """One parameter's share of the variance, and what it would reach by chance in all but 5 % of the cases."""

    key: str
    share: float
    by_chance: float


@dataclass(frozen=True)
class Importances:
    """All parameters, the most important first.

    Args:
        rows: empty if nothing can be said.
        epoch: after which the trials are compared: the last that all of them came to.
        num_trials: that are compared.
        reason: why there are no rows.
    """

    rows: tuple[Importance, ...]
    epoch: int
    num_trials: int
    reason: str = ""


def importances(parameters: Mapping[str, Distribution], trials: Sequence[Trial], seed: int) -> Importances:
    """The importance of each parameter for the score after the last epoch that all trials came to.

    Later epochs cannot be used: only the trials that were not stopped have them, and these were chosen by their score.
    """
    epoch = common_epoch(trials)
    params, scores = [], []
    for trial in trials:
        encoded, score = encode(parameters, trial.values), trial.score_after(epoch)
        if trial.status in ("finished", "stopped") and encoded is not None and score is not None:
            params.append(encoded)
            scores.append(score)
    if len(scores) < MIN_TRIALS:
        return Importances(
            (), epoch, len(scores), f"{len(scores)} comparable trials are too few, {MIN_TRIALS} are needed"
        )
    if len(set(scores)) == 1:
        return Importances((), epoch, len(scores), "all trials have the same score")
    varied = {key: one for key, one in parameters.items() if len({str(values[key]) for values in params}) > 1}
    if len(varied) < 2:
        return Importances((), epoch, len(scores), "fewer than two settings differ among the trials")
    params = [{key: values[key] for key in varied} for values in params]
    shares = _fanova(varied, params, scores, seed)
    rng = np.random.default_rng(seed)
    shuffled = [_fanova(varied, params, rng.permutation(scores).tolist(), seed) for _ in range(_SHUFFLES)]
    rows = [
        Importance(key, shares[key], float(np.quantile([one[key] for one in shuffled], _QUANTILE))) for key in varied
    ]
    return Importances(tuple(sorted(rows, key=lambda row: -row.share)), epoch, len(scores))


def _fanova(
    parameters: Mapping[str, Distribution], params: list[dict[str, object]], scores: list[float], seed: int
) -> dict[str, float]:
    import optuna

    logging.getLogger("optuna").setLevel(logging.ERROR)
    distributions = {key: to_optuna(distribution) for key, distribution in parameters.items()}
    study = optuna.create_study(direction="maximize")
    study.add_trials(
        [
            optuna.create_trial(value=score, params=values, distributions=distributions)
            for values, score in zip(params, scores, strict=True)
        ]
    )
    evaluator = optuna.importance.FanovaImportanceEvaluator(n_trees=_TREES, seed=seed % 2**31)
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {key: float(found[key]) for key in parameters}
