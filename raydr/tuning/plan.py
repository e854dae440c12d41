"""A search as far as it can be checked before anything starts, and how the resources are split among its trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raydr.config.run import RunConfig, apply_override, merged
from raydr.errors import ConfigError
from raydr.graph.declaring import encoders, trainers
from raydr.graph.refresh_results import check_measure
from raydr.runtime.console import say, show_table
from raydr.stages.resources import cluster_capacity
from raydr.store.folder import Folder
from raydr.tuning.distributions import as_text
from raydr.tuning.proposals import check_proposals, describe, num_trials
from raydr.tuning.resources import Shares, Split, share_resources, split_resources
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
    def judged(self) -> bool:
        """Whether trainings read judged data: if the space speaks of judges; a training alone judges nothing."""
        settings = self.space.settings
        named = "judge" in settings.fixed or any(key.startswith("judge.") for key in settings.space)
        return named and not self.refreshes

    def facts(self, split: Split | Shares) -> list[str]:
        """How it is searched, in sentences."""
        schedule, settings = self.schedule, self.space.settings
        best = self.refreshes or self.space.config.train.keep == "best"
        state = f"the best {schedule.unit} so far" if best else "after the last epoch"
        found = [
            f"{self.total} trials ({settings.search.algorithm}), trial 0 is the default; {split.describe()}",
            f"trials are compared by dev {self.measure}, {state}",
        ]
        if schedule.name == "none":
            return [*found, f"all go on for up to {schedule.max_epochs} {schedule.unit}s"]
        rungs = ", ".join(map(str, self.rungs()))
        warmup = "" if self.refreshes else f" (the longest warm-up of the space is {schedule.longest_warmup})"
        found.append(
            f"{schedule.name}: nothing is stopped in the first {schedule.grace_epochs} of {schedule.max_epochs} "
            f"{schedule.unit}s{warmup}, and the default never" + (f"; compared after {rungs}" if rungs else "")
        )
        return found

    @property
    def measure(self) -> str:
        """What trials are compared by, on the dev split."""
        config = self.space.config
        return config.refresh.measure or config.evaluate.measures[0] if self.refreshes else config.train.dev.measure

    def rungs(self) -> list[int]:
        """Epochs after which ASHA compares."""
        factor = self.space.settings.scheduler.reduction_factor
        return self.schedule.rungs(factor) if self.schedule.name == "asha" else []


def open_plan(config: RunConfig, space: str | Mapping[str, Any], name: str, overrides: Sequence[str]) -> TunePlan:
    """Plan the search of a space file, or of its content.

    Args:
        config: the run; as it is, it is the first trial.
        space: a file, or what would stand in it.
        name: of a space that is no file.
        overrides: ``key.path=value`` for settings of the space.

    Raises:
        ConfigError: the space is not valid, or cannot be searched with this config.
    """
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
    fixable = (*SEARCHABLE[space.settings.objective], *_FIXABLE)
    wrong = sorted(set(space.settings.fixed) - set(fixable))
    if wrong:
        raise ConfigError(f"the space fixes {wrong[0]}; it may fix settings of {', '.join(fixable)}")
    if space.settings.objective == "refresh":
        _check_refresh(space.config)
    schedule = plan_schedule(space)
    total = num_trials(space)
    check_proposals(space)
    plan = TunePlan(space, schedule, total)
    if plan.judged:
        for values, config in space.corners():
            _check_judges(config, values)
    return plan


def _check_refresh(config: RunConfig) -> None:
    if config.refresh.arms:
        raise ConfigError("the space fixes refresh.arms: a trial is one refresh, search over what the arms differ in")
    check_measure(config, config.refresh)


def _check_judges(config: RunConfig, values: dict[str, Any]) -> None:
    where = "".join(f" with {key} = {as_text(value)}" for key, value in values.items())
    judging = [judge.name for judge in config.judge.judges if judge.subject == "negatives"]
    if judging and not config.draws_candidates:
        raise ConfigError(
            f"the space{where} judges hard negatives with {judging[0]}, and the training has none: set a section "
            "negatives and train.num_hard_negatives in the config, for example --set negatives.miner=bm25 --set "
            "train.num_hard_negatives=4"
        )
    reading = [judge.name for judge in config.judge.judges if judge.reads == "cross_encoder"]
    learnt_from = config.judge.classifier.num_hard_negatives
    if reading and learnt_from and not config.draws_candidates:
        raise ConfigError(
            f"the space{where} judges with {reading[0]}, whose classifier learns from {learnt_from} mined candidates a "
            "query (judge.classifier.num_hard_negatives), and the training has none: set that to 0, or a section "
            "negatives and train.num_hard_negatives"
        )


def shares_for(plan: TunePlan, config: RunConfig) -> Shares:
    """Share what Ray has among refreshes; Ray is connected.

    Raises:
        ConfigError: a step of a trial does not fit.
    """
    own = plan.space.config
    needs = {"train": trainers(own), "encode": encoders(own)}
    shares = share_resources(needs, cluster_capacity(), plan.total, plan.space.settings.trials.concurrency)
    if shares.concurrency > 1 and not Folder(config.workdir).is_local:
        raise ConfigError(
            f"trials.concurrency is {shares.concurrency}: refreshes that run side by side share steps, which takes "
            f"locks, and the working folder {config.workdir} has none. Use a folder that all nodes see, or run one at "
            "a time"
        )
    return shares


def split_for(plan: TunePlan) -> Split:
    """Split what Ray has among the trials; Ray is connected.

    Raises:
        ConfigError: not even one trial fits.
    """
    wanted = plan.space.settings.trials.concurrency
    return split_resources(plan.space.config.train, cluster_capacity(), plan.total, wanted)


def show_plan(plan: TunePlan, split: Split | Shares) -> None:
    """Say what will be searched, with which resources."""
    space = plan.space
    rows = [(key, as_text(space.defaults[key]), values) for key, values in describe(space.parameters)]
    show_table(f"space {space.name}: {space.settings.description}".rstrip(": "), ["setting", "default", "tried"], rows)
    for fact in plan.facts(split):
        say(fact)
