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
        reduction_factor: of ASHA: one in so many goes on.
    """

    name: Literal["asha", "median", "none"]
    grace_epochs: int
    max_epochs: int
    longest_warmup: int
    unit: Literal["epoch", "round"] = "epoch"
    reduction_factor: float = 2

    @property
    def rungs(self) -> list[int]:
        """The epochs after which ASHA compares, in ascending order: the first ones at or after grace · factorᵏ.

        >>> Schedule("asha", grace_epochs=3, max_epochs=20, longest_warmup=2).rungs
        [3, 6, 12]
        >>> Schedule("asha", grace_epochs=3, max_epochs=9, longest_warmup=2, reduction_factor=1.5).rungs
        [3, 5, 7]
        """
        found, rung = [], float(self.grace_epochs)
        while self.name == "asha" and math.ceil(rung) < self.max_epochs:
            found.append(math.ceil(rung))
            rung *= self.reduction_factor
        return list(dict.fromkeys(found))


def plan_schedule(space: Space) -> Schedule:
    """Derive the schedule of a space, or check what it asks for.

    Raises:
        ConfigError: the grace period is within a warm-up, or so long that nothing could be stopped.
    """
    settings, corners = space.settings.scheduler, [config for _, config in space.corners]
    unit: Literal["epoch", "round"] = "round" if space.settings.objective == "refresh" else "epoch"
    if unit == "round":
        longest = int(any(key.startswith("refresh.") for key in space.parameters))
        most = max(config.refresh.num_rounds for config in corners)
        length, late = "refresh.num_rounds", "settings of refresh, which act from the second round on"
    else:
        longest = max(config.train.loss.num_warmup_epochs for config in corners)
        most = max(config.train.num_epochs for config in corners)
        length = "train.num_epochs"
        late = f"warm-ups (or a start of beta) of up to {longest} epochs, whose gain shows later"
        if longest >= most:
            raise ConfigError(
                f"the space {space.name} has warm-ups of up to {longest} epochs, and {length} is {most}: nothing would "
                "ever begin after such a warm-up; train longer or narrow the space"
            )
    if settings.name == "none":
        return Schedule("none", most, most, longest, unit)
    grace = settings.grace_epochs or longest + 1
    if grace <= longest:
        raise ConfigError(
            f"scheduler.grace_epochs is {grace}, but the space {space.name} has {late}: set it to {longest + 1} or "
            "more, or leave it out"
        )
    if grace >= most:
        shorter = "narrow the warm-ups of the space, " if unit == "epoch" else ""
        raise ConfigError(
            f"scheduler {settings.name} cannot stop anything: its grace period is {grace} {unit}s and {length} {most}. "
            f"Raise {length}, {shorter}or set scheduler.name: none"
        )
    return Schedule(settings.name, grace, most, longest, unit, settings.reduction_factor)
