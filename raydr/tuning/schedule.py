"""When trials may be stopped: never before the longest warm-up of the space, since its gain shows late."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from raydr.errors import ConfigError
from raydr.tuning.space import Space


@dataclass(frozen=True)
class Schedule:
    """When a trial may be stopped.

    Args:
        name: of the rule, see :class:`raydr.tuning.settings.SchedulerConfig`.
        grace_epochs: epochs (rounds, of a refresh) before anything is stopped.
        max_epochs: the longest trial of the space.
        longest_warmup: of the space, in epochs: until a warm-up ends or β is switched on; of refreshes in rounds: 1 if
            settings of ``refresh`` are searched, which act from the second round on.
        unit: what a trial is measured after.
    """

    name: Literal["asha", "median", "none"]
    grace_epochs: int
    max_epochs: int
    longest_warmup: int
    unit: Literal["epoch", "round"] = "epoch"

    def rungs(self, factor: float) -> list[int]:
        """The epochs after which ASHA compares, in ascending order: the first ones at or after grace · factorᵏ.

        >>> Schedule("asha", grace_epochs=3, max_epochs=20, longest_warmup=2).rungs(2)
        [3, 6, 12]
        >>> Schedule("asha", grace_epochs=3, max_epochs=9, longest_warmup=2).rungs(1.5)
        [3, 5, 7]
        """
        found, rung = [], float(self.grace_epochs)
        while math.ceil(rung) < self.max_epochs:
            found.append(math.ceil(rung))
            rung *= factor
        return list(dict.fromkeys(found))


def plan_schedule(space: Space) -> Schedule:
    """Derive the schedule of a space, or check what it asks for.

    Raises:
        ConfigError: the grace period is within a warm-up, or so long that nothing could be stopped.
    """
    settings = space.settings.scheduler
    refreshes = space.settings.objective == "refresh"
    unit: Literal["epoch", "round"] = "round" if refreshes else "epoch"
    longest, most = _longest_rounds(space) if refreshes else _longest_epochs(space)
    if settings.name == "none":
        return Schedule("none", most, most, longest, unit)
    grace = settings.grace_epochs or longest + 1
    if grace <= longest:
        late = "settings of refresh, which act from the second round on" if refreshes else (
            f"warm-ups (or a start of beta) of up to {longest} epochs, whose gain shows later"
        )  # fmt: skip
        raise ConfigError(
            f"scheduler.grace_epochs is {grace}, but the space {space.name} has {late}: set it to {longest + 1} or "
            "more, or leave it out"
        )
    if grace >= most:
        longer = "refresh.num_rounds" if refreshes else "train.num_epochs"
        shorter = "" if refreshes else "narrow the warm-ups of the space, "
        raise ConfigError(
            f"scheduler {settings.name} cannot stop anything: its grace period is {grace} {unit}s and {longer} {most}. "
            f"Raise {longer}, {shorter}or set scheduler.name: none"
        )
    return Schedule(settings.name, grace, most, longest, unit)


def _longest_epochs(space: Space) -> tuple[int, int]:
    """The longest warm-up and the longest training."""
    configs = [config.train for _, config in space.corners()]
    longest = max(train.loss.num_warmup_epochs for train in configs)
    most = max(train.num_epochs for train in configs)
    if longest >= most:
        raise ConfigError(
            f"the space {space.name} has warm-ups of up to {longest} epochs, and train.num_epochs is {most}: nothing "
            "would ever begin after such a warm-up; train longer or narrow the space"
        )
    return longest, most


def _longest_rounds(space: Space) -> tuple[int, int]:
    """Rounds in which nothing may differ yet, and the most rounds."""
    late = any(key.startswith("refresh.") for key in space.parameters)
    return int(late), max(config.refresh.num_rounds for _, config in space.corners())
