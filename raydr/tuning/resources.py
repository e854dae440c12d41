"""How the CPUs and GPUs are split among trials. A trial that waits holds none, so that no two wait for each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.graph.declaring import encoders, trainers
from raydr.graph.node import Resources
from raydr.stages.resources import IF_IT_GROWS


@dataclass(frozen=True)
class Shares:
    """Trials side by side.

    Args:
        concurrency: trials at a time.
        capacity: what there is, by Ray's names.
        what: a trial runs with, for people.
    """

    concurrency: int
    capacity: Resources
    what: str

    @property
    def each(self) -> dict[str, float]:
        """What falls to one trial, by Ray's names."""
        return {kind: amount / self.concurrency for kind, amount in self.capacity.items()}

    def describe(self) -> str:
        """
        >>> Shares(1, {"CPU": 2, "GPU": 0}, "with 2 Ray Train workers of 1 CPU").describe()
        '1 trial at a time, with 2 Ray Train workers of 1 CPU; Ray has 2 CPU'
        """
        trials = "1 trial" if self.concurrency == 1 else f"{self.concurrency} trials"
        return f"{trials} at a time, {self.what}; Ray has {amounts(self.capacity)}"


def share_resources(
    config: RunConfig, refreshes: bool, capacity: Resources, num_trials: int, wanted: int | None
) -> Shares:
    """Decide how many trials run at a time.

    As many trainings as fit; one refresh, whose nodes run side by side.

    Args:
        config: of the default trial.
        refreshes: trials are refreshes.
        capacity: CPUs and GPUs by Ray's names, ``ray.capacity`` of a cluster that grows.
        num_trials: of the search.
        wanted: trials at a time, as configured.

    Raises:
        ConfigError: not even one trial fits, or not as many as wanted.
    """
    needs = {"train": trainers(config)} | ({"encode": encoders(config)} if refreshes else {})
    if not refreshes and not isinstance(config.train.num_workers, int):
        raise ConfigError(
            f"train.num_workers is {list(config.train.num_workers)}: trials that grow and shrink cannot be fitted in "
            "side by side; give one number"
        )
    fitting = {section: _fitting(need, capacity) for section, need in needs.items()}
    tightest = min(fitting, key=fitting.__getitem__)
    if fitting[tightest] < (wanted or 1):
        asked = f", {wanted} are asked for (trials.concurrency)" if wanted else ""
        lower = " or trials.concurrency" if wanted and fitting[tightest] else ""
        raise ConfigError(
            f"a trial takes {amounts(needs[tightest])} (section {tightest}), Ray has {amounts(capacity)}: "
            f"{fitting[tightest]} at a time fit{asked}. Lower the section's resources{lower} {IF_IT_GROWS}"
        )
    most = 1 if refreshes else fitting[tightest]
    concurrency = min(wanted or most, num_trials)
    train = config.train
    one = amounts({"CPU": train.cpus_per_worker, "GPU": float(train.use_gpu)})
    process = "in one process" if train.num_workers == 1 else f"with {train.num_workers} Ray Train workers"
    share = f"1/{concurrency}" if concurrency > 1 else "all"
    what = f"with {share} of it" if refreshes else f"{process} of {one}"
    return Shares(concurrency, dict(capacity), f"each {what}" if concurrency > 1 else what)


def _fitting(need: Resources, capacity: Resources) -> int:
    # 1e-6: ten times 0.1 CPU are one CPU.
    return min(math.floor(capacity.get(kind, 0.0) / amount + 1e-6) for kind, amount in need.items() if amount)


def amounts(resources: Mapping[str, float]) -> str:
    """
    >>> amounts({"CPU": 4.0, "GPU": 1.0}), amounts({"CPU": 0.5, "GPU": 0.0})
    ('4 CPU and 1 GPU', '0.5 CPU')
    """
    return " and ".join(f"{amount:g} {kind}" for kind, amount in resources.items() if amount)


def describe_booked() -> str:
    """How many of Ray's CPUs and GPUs are booked, and by whom, for those who wait for some."""
    import ray
    from ray.util import placement_group_table

    there, free = ray.cluster_resources(), ray.available_resources()
    bundles = [
        bundle
        for group in placement_group_table().values()
        for bundle in group["bundles"].values()
        if group["state"] == "CREATED"
    ]
    found = []
    for kind in [kind for kind in ("CPU", "GPU") if kind in there]:
        booked, of_groups = there[kind] - free.get(kind, 0.0), sum(bundle.get(kind, 0.0) for bundle in bundles)
        others = f"{max(0.0, booked - of_groups):g} by other tasks and actors"
        found.append(f"of {there[kind]:g} {kind}, {booked:g} are booked: {of_groups:g} by groups of workers, {others}")
    return "; ".join(found)
