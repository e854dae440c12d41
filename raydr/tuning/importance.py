"""Which settings matter: how much of the variance of the score each explains (fANOVA).

fANOVA (Hutter et al., ICML 2014), as Optuna computes it: a random forest is fitted to the trials, and the variance of
its prediction over the space is split among the parameters. With few trials a forest finds something in noise too, so
that each share stands beside the one that it reaches by chance, with the scores shuffled among the trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna

from raydr.tuning.parameters import Parameter, distributions, encode
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


def importances(parameters: Mapping[str, Parameter], trials: Sequence[Trial], seed: int) -> Importances:
    """The importance of each parameter for the score after the last epoch that all trials came to.

    Later epochs cannot be used: only the trials that were not stopped have them, and these were chosen by their score.
    """
    epoch = common_epoch(trials)
    known = [
        (params, score)
        for trial in trials
        if trial.status in ("finished", "stopped")
        and (params := encode(parameters, trial.values)) is not None
        and (score := {row.epoch: row.score for row in trial.rows}.get(epoch)) is not None
    ]
    scores = [score for _, score in known]
    varied = {key: one for key, one in parameters.items() if len({str(params[key]) for params, _ in known}) > 1}
    wrong = {
        f"{len(known)} comparable trials are too few, {MIN_TRIALS} are needed": len(known) < MIN_TRIALS,
        "all trials have the same score": len(set(scores)) == 1,
        "fewer than two settings differ among the trials": len(varied) < 2,
    }
    if any(wrong.values()):
        return Importances((), epoch, len(known), next(reason for reason, applies in wrong.items() if applies))
    points = [{key: params[key] for key in varied} for params, _ in known]
    shares = _fanova(varied, points, scores, seed)
    rng = np.random.default_rng(seed)
    shuffled = [_fanova(varied, points, rng.permutation(scores).tolist(), seed) for _ in range(_SHUFFLES)]
    rows = [
        Importance(key, shares[key], float(np.quantile([one[key] for one in shuffled], _QUANTILE))) for key in varied
    ]
    return Importances(tuple(sorted(rows, key=lambda row: -row.share)), epoch, len(known))


def _fanova(
    parameters: Mapping[str, Parameter], points: list[dict[str, Any]], scores: list[float], seed: int
) -> dict[str, float]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study, spread = optuna.create_study(direction="maximize"), distributions(parameters)
    for params, score in zip(points, scores, strict=True):
        study.add_trial(optuna.create_trial(value=score, params=params, distributions=spread))
    evaluator = optuna.importance.FanovaImportanceEvaluator(n_trees=_TREES, seed=seed % 2**31)
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {key: float(found[key]) for key in parameters}
