"""A search as far as it can be checked before anything starts, and how the resources are split among its trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raydr.config.overrides import apply_override, merged
from raydr.config.run import RunConfig, check_name
from raydr.errors import ConfigError
from raydr.graph.refresh_results import check_measure
from raydr.runtime.console import say, show_table
from raydr.tuning.parameters import as_text
from raydr.tuning.proposals import check_proposals, num_trials
from raydr.tuning.resources import Shares
from raydr.tuning.schedule import Schedule, plan_schedule
from raydr.tuning.space import Space, build_space, load_space
from raydr.tuning.trial_config import SEARCHABLE

#: Sections that a space may fix, besides those that it may search.
_FIXABLE = ("bm25", "search")


@dataclass(frozen=True)
class TunePlan:
    """What is searched, when trials are stopped, and how many there are."""

    space: Space
    schedule: Schedule
    total: int

    @property
    def nested(self) -> bool:
        """Whether trials run Ray Train."""
        return self.refreshes or self.space.config.train.num_workers != 1

    @property
    def refreshes(self) -> bool:
        """Whether a trial is a refresh, and not one training."""
        return self.space.settings.objective == "refresh"

    @property
    def measure(self) -> str:
        """What trials are compared by, on the dev split."""
        config = self.space.config
        return config.refresh.measure or config.evaluate.measures[0] if self.refreshes else config.train.dev.measure

    def facts(self, shares: Shares) -> list[str]:
        """How it is searched, in sentences."""
        schedule, unit = self.schedule, self.schedule.unit
        best = self.refreshes or self.space.config.train.keep == "best"
        state = f"the best {unit} so far" if best else "after the last epoch"
        found = [
            f"{self.total} trials ({self.space.settings.search.algorithm}), trial 0 is the default; "
            f"{shares.describe()}",
            f"trials are compared by dev {self.measure}, {state}",
        ]
        if schedule.name == "none":
            return [*found, f"all go on for up to {schedule.max_epochs} {unit}s"]
        warmup = "" if self.refreshes else f" (the longest warm-up of the space is {schedule.longest_warmup})"
        rungs = f"; compared after {', '.join(map(str, schedule.rungs))}" if schedule.rungs else ""
        found.append(
            f"{schedule.name}: nothing is stopped in the first {schedule.grace_epochs} of {schedule.max_epochs} "
            f"{unit}s{warmup}, and the default never{rungs}"
        )
        return found


def open_plan(config: RunConfig, space: str | Mapping[str, Any], name: str, overrides: Sequence[str]) -> TunePlan:
    """Plan the search of a space file, or of its content.

    Args:
        config: the run; as it is, it is the first trial.
        space: a file, or what would stand in it.
        name: of a space that is no file.
        overrides: ``key.path=value`` for settings of the space.

    Raises:
        ConfigError: the name is none of a folder, the space is not valid, or cannot be searched with this config.
    """
    if name:
        check_name(name, "search")
    changes: dict[str, Any] = {}
    for override in overrides:
        apply_override(changes, override, "--set-space")
    if isinstance(space, str):
        return plan_search(load_space(space, config, changes))
    return plan_search(build_space(merged(dict(space), changes), config, name or "space"))


def plan_search(space: Space) -> TunePlan:
    """Check what can be checked before anything starts.

    Raises:
        ConfigError: the space, its schedule or the number of its trials make no sense, or trials need what the config
            has not.
    """
    settings = space.settings
    fixable = (*SEARCHABLE[settings.objective], *_FIXABLE)
    if wrong := sorted(set(settings.fixed) - set(fixable)):
        raise ConfigError(f"the space fixes {wrong[0]}; it may fix settings of {', '.join(fixable)}")
    schedule, total = plan_schedule(space), num_trials(space)
    check_proposals(space)
    if settings.objective == "refresh":
        if space.config.refresh.arms:
            raise ConfigError(
                "the space fixes refresh.arms: a trial is one refresh, search over what the arms differ in"
            )
        check_measure(space.config, space.config.refresh)
    elif "judge" in settings.fixed or any(key.startswith("judge.") for key in settings.space):
        for values, config in space.corners:
            _check_judges(config, values)
    return TunePlan(space, schedule, total)


def _check_judges(config: RunConfig, values: Mapping[str, Any]) -> None:
    """A training without candidates leaves judges of candidates out, and the search would be for nothing."""
    judging = [judge.name for judge in config.judge.judges if judge.subject == "negatives"]
    if judging and not config.draws_candidates:
        where = "".join(f" with {key} = {as_text(value)}" for key, value in values.items())
        raise ConfigError(
            f"the space{where} judges hard negatives with {judging[0]}, and the training has none: set a section "
            "negatives and train.num_hard_negatives in the config, for example --set negatives.miner=bm25 --set "
            "train.num_hard_negatives=4"
        )


def show_plan(plan: TunePlan, shares: Shares) -> None:
    """Say what will be searched, with which resources."""
    space = plan.space
    show_table(f"space {space.name}: {space.settings.description}".rstrip(": "), *space.rows())
    for fact in plan.facts(shares):
        say(fact)
