"""The plan of a search, checked before anything starts: the trials, their early stopping and their resources."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from raydr.artefacts import encoders, trainers
from raydr.artefacts.declaration import Resources
from raydr.config.files import SPACES, apply_override, located, merged, read_mapping
from raydr.config.run import RunConfig, check_name
from raydr.distributed.resources import IF_IT_GROWS
from raydr.errors import ConfigError
from raydr.pipeline.refresh import check_dev_split, check_measure
from raydr.tuning.settings import as_text
from raydr.tuning.space import SEARCHABLE, Space, build_space, with_values

#: Sections that a space may fix, besides those that it may search.
_FIXABLE = ("bm25", "search")
#: Default number of trials; maximal number of combinations of a grid.
_NUM_TRIALS, _MOST = 16, 10_000


@dataclass(frozen=True)
class TunePlan:
    """A search space, with the limits of its trials.

    Args:
        space: bound to its config.
        grace_epochs: epochs (rounds of a refresh) before a trial may be stopped.
        max_epochs: epochs (rounds) of the longest trial of the space.
    """

    space: Space
    grace_epochs: int
    max_epochs: int

    @property
    def refreshes(self) -> bool:
        """Whether a trial is a refresh rather than a training."""
        return self.space.settings.objective == "refresh"

    @property
    def unit(self) -> str:
        """The noun of the step after which a trial is measured: epoch or round."""
        return "round" if self.refreshes else "epoch"

    @property
    def nested(self) -> bool:
        """Whether trials run Ray Train."""
        return self.refreshes or self.space.config.train.num_workers != 1

    @property
    def measure(self) -> str:
        """The measure on the dev split by which trials are compared."""
        config = self.space.config
        return config.refresh.measure or config.evaluate.measures[0] if self.refreshes else config.train.dev.measure

    @cached_property
    def combinations(self) -> list[dict[str, Any]]:
        """Values that a grid tries after the default, the last setting changing fastest; empty for other searches."""
        space = self.space
        if space.settings.search.algorithm != "grid":
            return []
        if ranges := [key for key, parameter in space.parameters.items() if parameter.values is None]:
            raise ConfigError(
                f"search.algorithm grid tries every combination, but {', '.join(ranges)} is a range: set steps, or "
                "list its values with grid"
            )
        if space.settings.search.num_trials is not None:
            raise ConfigError("search.num_trials is set, but a grid has as many trials as combinations: leave it out")
        lists = [parameter.values or [] for parameter in space.parameters.values()]
        if math.prod(map(len, lists)) > _MOST:
            raise ConfigError(f"the grid of {space.name} has more than {_MOST:,} combinations: leave some values out")
        default = [as_text(value) for value in space.defaults.values()]
        combinations = (values for values in product(*lists) if [as_text(value) for value in values] != default)
        return [dict(zip(space.parameters, values, strict=True)) for values in combinations]

    @property
    def total(self) -> int:
        """Number of trials, the default among them."""
        search = self.space.settings.search
        return 1 + len(self.combinations) if search.algorithm == "grid" else search.num_trials or _NUM_TRIALS

    @property
    def warmups(self) -> tuple[int, ...]:
        """Lengths of the warm-ups in the space, in epochs; trials share warm-ups."""
        numbers = {config.train.loss.num_warmup_epochs for _, config in self.space.corners}
        return tuple(sorted(numbers - {0}))

    def facts(self, concurrency: int) -> list[str]:
        """Return sentences on the search with ``concurrency`` trials at a time."""
        settings, unit = self.space.settings, self.unit
        compared = f"the best {unit} so far" if self.refreshes or self.space.config.train.keep == "best" else "the last"
        stopping = "no trial is stopped early"
        if settings.scheduler.name != "none":
            first = f"the first {self.grace_epochs} of {self.max_epochs} {unit}s"
            stopping = f"no trial is stopped in {first}, and the default never"
        return [
            f"{self.total} trials ({settings.search.algorithm}), {concurrency} at a time; trial 0 is the default",
            f"trials are compared by dev {self.measure} of {compared}",
            f"scheduler {settings.scheduler.name}: {stopping}",
        ]


def open_plan(
    config: RunConfig, space: str | Mapping[str, Any], name: str = "", overrides: Sequence[str] = ()
) -> TunePlan:
    """Plan the search of a space file, or of its content.

    Args:
        config: config of the run; unchanged, it is the first trial.
        space: a YAML file, the name of a space that comes with raydr, such as ``npc``, or the content of a space file.
        name: name of the search in the working folder; by default that of the file.
        overrides: ``key.path=value`` for settings of the space.

    Raises:
        ConfigError: the name is no valid folder name, the space is missing or not valid, or this config does not
            support it.
    """
    if name:
        check_name(name, "search")
    changes: dict[str, Any] = {}
    for override in overrides:
        apply_override(changes, override, "--set-space")
    if not isinstance(space, str):
        return plan_search(build_space(merged(dict(space), changes), config, name or "space"))
    file = located(space, SPACES, "space file")
    raw = merged(read_mapping(file, "space file", "with a section space"), changes)
    return plan_search(build_space(raw, config, name or file.stem, str(file)))


def plan_search(space: Space) -> TunePlan:
    """Check a space and plan its search, before anything starts.

    Raises:
        ConfigError: the space, its grace period or its number of trials is not valid, or the config lacks what trials
            need.
    """
    settings = space.settings
    fixable = (*SEARCHABLE[settings.objective], *_FIXABLE)
    if wrong := sorted(set(settings.fixed) - set(fixable)):
        raise ConfigError(f"the space fixes {wrong[0]}; it may fix settings of {', '.join(fixable)}")
    check_dev_split(space.config)
    plan = _plan_stopping(space)
    for values in plan.combinations:
        with_values(space.config, values)
    if settings.objective == "refresh":
        if space.config.refresh.arms:
            raise ConfigError(
                "the space fixes refresh.arms, but a trial is a single refresh: search the settings of the arms instead"
            )
        check_measure(space.config, space.config.refresh)
    return plan


def _plan_stopping(space: Space) -> TunePlan:
    scheduler, corners = space.settings.scheduler, [config for _, config in space.corners]
    if space.settings.objective == "refresh":
        longest = int(any(key.startswith("refresh.") for key in space.parameters))
        most = max(config.refresh.num_rounds for config in corners)
        length, late = "refresh.num_rounds", "settings of refresh, which act from the second round on"
    else:
        longest = max(config.train.loss.num_warmup_epochs for config in corners)
        most = max(config.train.num_epochs for config in corners)
        length = "train.num_epochs"
        late = f"warm-ups (or a start of beta) of up to {longest} epochs, whose gain shows later"
    if scheduler.name == "none":
        return TunePlan(space, most, most)
    grace = scheduler.grace_epochs or longest + 1
    if grace <= longest:
        raise ConfigError(
            f"scheduler.grace_epochs is {grace}, but the space {space.name} has {late}: set it to {longest + 1} or "
            "more, or leave it out"
        )
    if grace >= most:
        raise ConfigError(
            f"scheduler {scheduler.name} cannot stop anything: its grace period is {grace} and {length} {most}. Raise "
            f"{length}, narrow the warm-ups of the space, or set scheduler.name: none"
        )
    return TunePlan(space, grace, most)


def num_side_by_side(plan: TunePlan, capacity: Resources) -> int:
    """Return the number of trials that run at a time: all trainings that fit, or a single refresh.

    Args:
        plan: plan of the search.
        capacity: CPUs and GPUs by Ray's names; ``ray.capacity`` for a cluster that grows.

    Raises:
        ConfigError: no trial fits, or fewer fit than ``trials.concurrency``.
    """
    config, wanted = plan.space.config, plan.space.settings.trials.concurrency
    if plan.refreshes and wanted not in (None, 1):
        raise ConfigError(f"trials.concurrency is {wanted}: refreshes run one at a time, their artefacts side by side")
    # Encoders make the training data of trials with several workers.
    needs = {"train": trainers(config)} | ({"encode": encoders(config)} if plan.nested else {})
    # 1e-6: ten times 0.1 CPU must count as a whole CPU.
    fitting = {
        section: min(math.floor(capacity.get(kind, 0.0) / amount + 1e-6) for kind, amount in need.items() if amount)
        for section, need in needs.items()
    }
    tightest = min(fitting, key=fitting.__getitem__)
    if fitting[tightest] < (wanted or 1):
        raise ConfigError(
            f"a trial takes {_amounts(needs[tightest])} (section {tightest}), Ray has {_amounts(capacity)}: "
            f"{fitting[tightest]} at a time fit{f', trials.concurrency is {wanted}' if wanted else ''}. Lower the "
            f"section's resources or trials.concurrency {IF_IT_GROWS}"
        )
    return min(wanted or (1 if plan.refreshes else fitting[tightest]), plan.total)


def _amounts(resources: Resources) -> str:
    return " and ".join(f"{amount:g} {kind}" for kind, amount in resources.items() if amount)
