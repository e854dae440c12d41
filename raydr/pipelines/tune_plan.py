"""A search as far as it can be checked before anything starts, and how the resources are split among its trials."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from raydr.config import RunConfig
from raydr.console import say, show_table
from raydr.errors import ConfigError
from raydr.pipelines.tune_inputs import uses_candidates
from raydr.stages.resources import cluster_capacity
from raydr.storage import Folder
from raydr.tuning.distributions import as_text
from raydr.tuning.proposals import check_proposals, describe, num_trials
from raydr.tuning.resources import Split, split_resources
from raydr.tuning.schedule import Schedule, plan_schedule
from raydr.tuning.space import Space
from raydr.tuning.trial_config import SEARCHABLE

#: Sections that a space may fix, besides those that it may search.
_FIXABLE = (*SEARCHABLE, "bm25", "search")


@dataclass(frozen=True)
class TunePlan:
    """What is searched, when trials are stopped, and how many there are."""

    space: Space
    schedule: Schedule
    total: int

    @property
    def nested(self) -> bool:
        """Whether trials run Ray Train."""
        return self.space.config.train.num_workers != 1

    @property
    def judged(self) -> bool:
        """Whether trials train on judged data: if the space speaks of judges; a training alone judges nothing."""
        settings = self.space.settings
        return "judge" in settings.fixed or any(key.startswith("judge.") for key in settings.space)

    def facts(self, split: Split) -> list[str]:
        """How it is searched, in sentences."""
        schedule, settings = self.schedule, self.space.settings
        train = self.space.config.train
        state = "the best epoch so far" if train.keep == "best" else "after the last epoch"
        found = [
            f"{self.total} trials ({settings.search.algorithm}), trial 0 is the default; {split.describe()}",
            f"trials are compared by dev {train.dev.measure}, {state}",
        ]
        if schedule.name == "none":
            return [*found, f"all are trained for up to {schedule.max_epochs} epochs"]
        rungs = ", ".join(map(str, self.rungs()))
        found.append(
            f"{schedule.name}: nothing is stopped in the first {schedule.grace_epochs} of {schedule.max_epochs} epochs "
            f"(the longest warm-up of the space is {schedule.longest_warmup}), and the default never"
            + (f"; compared after {rungs}" if rungs else "")
        )
        return found

    def rungs(self) -> list[int]:
        """Epochs after which ASHA compares."""
        factor = self.space.settings.scheduler.reduction_factor
        return self.schedule.rungs(factor) if self.schedule.name == "asha" else []


def plan_search(space: Space) -> TunePlan:
    """Check what can be checked before anything starts.

    Raises:
        ConfigError: the space, its schedule or the number of its trials make no sense, or trials need what the config
            has not.
    """
    wrong = sorted(set(space.settings.fixed) - set(_FIXABLE))
    if wrong:
        raise ConfigError(f"the space fixes {wrong[0]}; it may fix settings of {', '.join(_FIXABLE)}")
    schedule = plan_schedule(space)
    total = num_trials(space)
    check_proposals(space)
    plan = TunePlan(space, schedule, total)
    if plan.judged:
        for values, config in space.corners():
            _check_judges(config, values)
    return plan


def _check_judges(config: RunConfig, values: dict[str, Any]) -> None:
    where = "".join(f" with {key} = {as_text(value)}" for key, value in values.items())
    judging = [judge.name for judge in config.judge.judges if judge.subject == "negatives"]
    if judging and not uses_candidates(config):
        raise ConfigError(
            f"the space{where} judges hard negatives with {judging[0]}, and the training has none: set a section "
            "negatives and train.num_hard_negatives in the config, for example --set negatives.miner=bm25 --set "
            "train.num_hard_negatives=4"
        )


def split_for(plan: TunePlan, config: RunConfig) -> Split:
    """Split what Ray has among the trials; Ray is connected.

    Raises:
        ConfigError: not even one trial fits.
    """
    remote = bool(config.ray.address or os.environ.get("RAY_ADDRESS"))
    wanted = plan.space.settings.trials.concurrency
    split = split_resources(plan.space.config.train, cluster_capacity(), plan.total, wanted, may_grow=remote)
    if plan.schedule.name == "pbt":
        _check_population(plan, split, config)
    return split


def _check_population(plan: TunePlan, split: Split, config: RunConfig) -> None:
    if not split.alone:
        raise ConfigError(
            f"population based training takes trials of one process, train.num_workers is {split.num_workers}: set it "
            "to 1 or take another scheduler"
        )
    if split.concurrency < plan.total:
        raise ConfigError(
            f"population based training compares trials that run side by side: {plan.total} are asked for, "
            f"{split.concurrency} fit. Set search.num_trials to {split.concurrency} or less, or take another scheduler"
        )
    if not Folder(config.workdir).is_local:
        raise ConfigError(
            f"population based training passes states on by paths, and the working folder {config.workdir} is none: "
            "use a folder that all nodes see, or take another scheduler"
        )


def show_plan(plan: TunePlan, split: Split) -> None:
    """Say what will be searched, with which resources."""
    space = plan.space
    rows = [(key, as_text(space.defaults[key]), values) for key, values in describe(space.parameters)]
    show_table(f"space {space.name}: {space.settings.description}".rstrip(": "), ["setting", "default", "tried"], rows)
    for fact in plan.facts(split):
        say(fact)
