"""Ray Tune's schedulers with raydr's settings, told of the trials that an interrupted search has finished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule, TrialScheduler

from raydr.tuning.schedule import Schedule
from raydr.tuning.settings import SchedulerConfig
from raydr.tuning.trials import Trial


class SparingASHA(ASHAScheduler):  # type: ignore[misc]  # Ray is not typed
    """ASHA that never stops the default, since the others are compared with it."""

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        action: str = super().on_trial_result(tune_controller, trial, result)
        return str(TrialScheduler.CONTINUE) if _is_default(trial) else action


class SparingMedian(MedianStoppingRule):  # type: ignore[misc]
    """Median stopping that never stops the default, since the others are compared with it."""

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if _is_default(trial) and "score" in result:
            # The hook that only remembers the result.
            self.on_trial_complete(tune_controller, trial, result)
            return str(TrialScheduler.CONTINUE)
        return str(super().on_trial_result(tune_controller, trial, result))


class _PastTrial:
    """Stands for a trial of the interrupted search: this is all that schedulers look at."""

    def __init__(self, number: int) -> None:
        self.trial_id = f"past-{number}"
        self.config = {"trial": {"number": number}}


def _is_default(trial: Any) -> bool:
    return bool(trial.config["trial"]["number"] == 0)


def make_scheduler(settings: SchedulerConfig, schedule: Schedule, over: Sequence[Trial]) -> TrialScheduler:
    """The scheduler, as it would be had it seen the trials that are over.

    Args:
        settings: of the space.
        schedule: grace period and longest training.
        over: trials of the interrupted search, failed ones too.
    """
    if schedule.name == "none":
        return FIFOScheduler()
    shared: dict[str, Any] = {"time_attr": "epoch", "metric": "score", "mode": "max"}
    shared["grace_period"] = schedule.grace_epochs
    if schedule.name == "asha":
        scheduler = SparingASHA(
            **shared,
            max_t=schedule.max_epochs,
            reduction_factor=schedule.reduction_factor,
            # A trial that reaches the last epoch ends by itself, when its model is saved.
            stop_last_trials=False,
        )
        remember = scheduler.on_trial_result
    else:
        # Without a limit it pauses trials while there are too few to compare with.
        scheduler = SparingMedian(**shared, min_samples_required=settings.min_trials, min_time_slice=float("inf"))
        remember = scheduler.on_trial_complete
    for trial in over:
        past = _PastTrial(trial.number)
        scheduler.on_trial_add(None, past)
        for row in trial.rows:
            remember(None, past, {"epoch": row.epoch, "score": row.score})
    return scheduler
