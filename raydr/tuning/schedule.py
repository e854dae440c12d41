"""When trials may be stopped or changed: never before the longest warm-up of the space, since its gain shows late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from raydr.errors import ConfigError
from raydr.tuning.space import Space

#: Settings that a training can change in its middle, for population based training.
CHANGEABLE = (
    "model.dropout",
    "model.scale",
    "train.loss.beta.final",
    "train.loss.consistency_weight",
    "train.num_hard_negatives",
    "train.optimizer.learning_rate",
    "train.optimizer.weight_decay",
    "train.pair_detection.detector.threshold",
    "train.sampler",
    "train.teacher.momentum",
)


@dataclass(frozen=True)
class Schedule:
    """When a trial may be stopped.

    Args:
        name: of the rule, see :class:`raydr.tuning.settings.SchedulerConfig`.
        grace_epochs: epochs (rounds, of a refresh) before anything is stopped or changed.
        max_epochs: the longest trial of the space.
        longest_warmup: of the space, in epochs: until a warm-up ends or β is switched on; 0 for refreshes.
        unit: what a trial is measured after.
    """

    name: Literal["asha", "median", "pbt", "none"]
    grace_epochs: int
    max_epochs: int
    longest_warmup: int
    unit: Literal["epoch", "round"] = "epoch"

    def rungs(self, factor: float) -> list[int]:
        """The epochs after which ASHA compares, in ascending order.

        >>> Schedule("asha", grace_epochs=3, max_epochs=20, longest_warmup=2).rungs(2)
        [3, 6, 12]
        """
        found, rung = [], float(self.grace_epochs)
        while round(rung) < self.max_epochs:
            found.append(round(rung))
            rung *= factor
        return found


def plan_schedule(space: Space) -> Schedule:
    """Derive the schedule of a space, or check what it asks for.

    Raises:
        ConfigError: the grace period is within a warm-up, or so long that nothing could be stopped, or population based
            training is asked to change what cannot be changed.
    """
    if space.settings.objective == "refresh":
        return _plan_rounds(space)
    settings = space.settings.scheduler
    longest, max_epochs = 0, 0
    for _, config in space.corners():
        longest = max(longest, config.train.loss.num_warmup_epochs)
        max_epochs = max(max_epochs, config.train.num_epochs)
    if longest >= max_epochs:
        raise ConfigError(
            f"the space {space.name} has warm-ups of up to {longest} epochs, and train.num_epochs is {max_epochs}: "
            "nothing would ever begin after such a warm-up; train longer or narrow the space"
        )
    grace = settings.grace_epochs or longest + 1
    if settings.name == "none":
        return Schedule("none", max_epochs, max_epochs, longest)
    if grace <= longest:
        raise ConfigError(
            f"scheduler.grace_epochs is {grace}, but the space {space.name} has warm-ups (or a start of beta) of up to "
            f"{longest} epochs, whose gain shows later: set it to {longest + 1} or more, or leave it out"
        )
    if grace >= max_epochs:
        raise ConfigError(
            f"scheduler {settings.name} cannot stop anything: its grace period is {grace} epochs and train.num_epochs "
            f"{max_epochs}. Train longer, narrow the warm-ups of the space, or set scheduler.name: none"
        )
    if settings.name == "pbt":
        _check_changeable(space)
    return Schedule(settings.name, grace, max_epochs, longest)


def _plan_rounds(space: Space) -> Schedule:
    """Of a search over refreshes, whose trials are compared after each round."""
    settings = space.settings.scheduler
    num_rounds = max(config.refresh.num_rounds for _, config in space.corners())
    grace = settings.grace_epochs or 1
    if settings.name == "none":
        return Schedule("none", num_rounds, num_rounds, 0, "round")
    if settings.name == "pbt":
        raise ConfigError(
            "population based training changes settings in the middle of a training, and a trial of this space is a "
            "whole refresh: take another scheduler"
        )
    if grace >= num_rounds:
        raise ConfigError(
            f"scheduler {settings.name} cannot stop anything: its grace period is {grace} rounds and "
            f"refresh.num_rounds {num_rounds}. Refresh longer, or set scheduler.name: none"
        )
    return Schedule(settings.name, grace, num_rounds, 0, "round")


def _check_changeable(space: Space) -> None:
    fixed = [key for key in space.parameters if not _is_changeable(key)]
    if fixed:
        raise ConfigError(
            f"population based training changes settings in the middle of a training, which {', '.join(fixed)} cannot "
            f"be: take another scheduler, or search only {', '.join(CHANGEABLE)}"
        )
    if space.settings.search.algorithm == "grid":
        raise ConfigError("population based training begins with random trials: set search.algorithm: random")


def _is_changeable(key: str) -> bool:
    return any(key == one or key.startswith(f"{one}.") for one in CHANGEABLE)
