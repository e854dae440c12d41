"""Ray Tune's schedulers with raydr's settings, told of the trials that an interrupted search has finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    TrialScheduler,
)

from raydr.tuning.schedule import Schedule
from raydr.tuning.settings import SchedulerConfig
from raydr.tuning.space import Space
from raydr.tuning.trials import WAITED, Trial

_METRIC = {"metric": "score", "mode": "max"}


@dataclass(frozen=True)
class _PastTrial:
    """Stands for a trial of the interrupted search: schedulers only look at its id."""

    trial_id: str


class SparingASHA(ASHAScheduler):  # type: ignore[misc]  # Ray is not typed
    """ASHA that never stops the default, since the others are compared with it."""

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if WAITED in result:
            return str(TrialScheduler.CONTINUE)
        action: str = super().on_trial_result(tune_controller, trial, result)
        return str(TrialScheduler.CONTINUE) if _is_default(trial) else action


class SparingMedian(MedianStoppingRule):  # type: ignore[misc]
    """Median stopping that never stops the default, since the others are compared with it."""

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if WAITED in result:
            return str(TrialScheduler.CONTINUE)
        if _is_default(trial):
            # The hook that only remembers the result.
            self.on_trial_complete(tune_controller, trial, result)
            return str(TrialScheduler.CONTINUE)
        return str(super().on_trial_result(tune_controller, trial, result))


def _is_default(trial: Any) -> bool:
    return not isinstance(trial, _PastTrial) and trial.config["trial"]["number"] == 0


def make_scheduler(space: Space, schedule: Schedule, over: Sequence[Trial]) -> TrialScheduler:
    """The scheduler, as it would be had it seen the trials that are over.

    Args:
        space: with the scheduler's settings.
        schedule: its grace period and longest training.
        over: trials of the interrupted search, failed ones too.
    """
    settings = space.settings.scheduler
    match schedule.name:
        case "asha":
            return _asha(settings, schedule, over)
        case "median":
            return _median(settings, schedule, over)
        case _:
            return FIFOScheduler()


def _asha(settings: SchedulerConfig, schedule: Schedule, over: Sequence[Trial]) -> TrialScheduler:
    scheduler = SparingASHA(
        time_attr="epoch",
        **_METRIC,
        max_t=schedule.max_epochs,
        grace_period=schedule.grace_epochs,
        reduction_factor=settings.reduction_factor,
        # A trial that reaches the last epoch ends by itself, when its model is saved.
        stop_last_trials=False,
    )
    for past, results in _results(over):
        scheduler.on_trial_add(None, past)
        for result in results:
            scheduler.on_trial_result(None, past, result)
    return scheduler


def _median(settings: SchedulerConfig, schedule: Schedule, over: Sequence[Trial]) -> TrialScheduler:
    scheduler = SparingMedian(
        time_attr="epoch",
        **_METRIC,
        grace_period=schedule.grace_epochs,
        min_samples_required=settings.min_trials,
        # Else it pauses trials while there are too few to compare with.
        min_time_slice=float("inf"),
    )
    for past, results in _results(over):
        for result in results:
            scheduler.on_trial_complete(None, past, result)
    return scheduler


def _results(over: Sequence[Trial]) -> list[tuple[_PastTrial, list[dict[str, Any]]]]:
    return [
        (_PastTrial(f"past-{trial.number}"), [{"epoch": row.epoch, "score": row.score} for row in trial.rows])
        for trial in over
        if trial.rows
    ]
