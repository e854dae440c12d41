"""How the CPUs and GPUs are split among trials. A trial that waits holds none, so that no two wait for each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from raydr.errors import ConfigError
from raydr.runtime.capacity import is_on_demand
from raydr.training.config import TrainConfig

#: Trials at a time where as many as one likes would fit, and none is told: all at once, a search could not learn from
#: its trials, and would pay for a whole cluster.
ON_GROWING = 4


@dataclass(frozen=True)
class Split:
    """What a trial takes, and how many run at a time.

    Args:
        num_workers: training processes of a trial; a single one runs without Ray Train.
        cpus, gpus: of each process.
        concurrency: trials at a time.
        capacity: what there is, by Ray's names.
    """

    num_workers: int
    cpus: float
    gpus: int
    concurrency: int
    capacity: dict[str, float]

    @property
    def alone(self) -> bool:
        """Whether a trial trains in one process."""
        return self.num_workers == 1

    def describe(self) -> str:
        """
        >>> Split(2, 1, 0, 1, {"CPU": 2, "GPU": 0}).describe()
        '1 trial at a time, each with 2 Ray Train workers of 1 CPU: 2 of 2 CPU in use'
        >>> from raydr.runtime.capacity import ON_DEMAND
        >>> Split(1, 1, 1, 4, {"CPU": ON_DEMAND, "GPU": ON_DEMAND}).describe()
        '4 trials at a time, each in one process of 1 CPU and 1 GPU, on a cluster that grows on demand'
        """
        amounts = [f"{self.cpus:g} CPU"] + ([f"{self.gpus} GPU"] if self.gpus else [])
        each = f"in one process of {' and '.join(amounts)}" if self.alone else (
            f"with {self.num_workers} Ray Train workers of {' and '.join(amounts)}"
        )  # fmt: skip
        trials = _at_a_time(self.concurrency)
        if is_on_demand(self.capacity):
            return f"{trials}, each {each}, on a cluster that grows on demand"
        used = [
            f"{self.concurrency * self.num_workers * amount:g} of {self.capacity.get(kind, 0):g} {kind}"
            for kind, amount in (("CPU", self.cpus), ("GPU", self.gpus))
            if amount
        ]
        return f"{trials}, each {each}: {', '.join(used)} in use"


@dataclass(frozen=True)
class Shares:
    """Refreshes side by side: the steps of each share what falls to it, and take it by turns.

    Args:
        concurrency: trials at a time.
        capacity: what there is, by Ray's names.
    """

    concurrency: int
    capacity: dict[str, float]

    @property
    def each(self) -> dict[str, float]:
        """What falls to one trial, by Ray's names."""
        return {kind: amount / self.concurrency for kind, amount in self.capacity.items()}

    def describe(self) -> str:
        """
        >>> Shares(2, {"CPU": 8, "GPU": 2}).describe()
        '2 trials at a time, each with 4 CPU and 1 GPU for its steps'
        >>> Shares(1, {"CPU": 2, "GPU": 0}).describe()
        '1 trial at a time, with 2 CPU for its steps'
        >>> from raydr.runtime.capacity import ON_DEMAND
        >>> Shares(1, {"CPU": ON_DEMAND, "GPU": ON_DEMAND}).describe()
        '1 trial at a time, on a cluster that grows on demand'
        """
        trials = _at_a_time(self.concurrency)
        if is_on_demand(self.capacity):
            return f"{trials}, on a cluster that grows on demand"
        amounts = " and ".join(f"{self.each.get(kind, 0):g} {kind}" for kind in ("CPU", "GPU") if self.each.get(kind))
        each = "with" if self.concurrency == 1 else "each with"
        return f"{trials}, {each} {amounts} for its steps"


def _at_a_time(concurrency: int) -> str:
    return "1 trial at a time" if concurrency == 1 else f"{concurrency} trials at a time"


def share_resources(
    needs: Mapping[str, Mapping[str, float]],
    capacity: Mapping[str, float],
    num_trials: int,
    wanted: int | None,
) -> Shares:
    """Decide how many refreshes run at a time: one, if no number is wanted, since its own steps run side by side.

    Args:
        needs: what each kind of step cannot do without, by the section of the config that says so.
        capacity: CPUs and GPUs by Ray's names, with what an autoscaler may add.
        num_trials: of the search.
        wanted: trials at a time, as configured.

    Raises:
        ConfigError: a step of a single trial does not fit into its share.
    """
    shares = Shares(min(wanted or 1, num_trials), {kind: capacity.get(kind, 0.0) for kind in ("CPU", "GPU")})
    if is_on_demand(capacity):
        return shares
    for section, amounts in needs.items():
        for kind, amount in amounts.items():
            if amount > shares.each[kind] + 1e-6:
                raise ConfigError(
                    f"a step of a trial takes {amount:g} {kind} (section {section}), and {shares.each[kind]:g} of "
                    f"{shares.capacity[kind]:g} fall to a trial: lower the section's resources"
                    + (" or trials.concurrency" if shares.concurrency > 1 else "")
                )
    return shares


def split_resources(train: TrainConfig, capacity: Mapping[str, float], num_trials: int, wanted: int | None) -> Split:
    """Decide how many trials run at a time.

    Args:
        train: workers of a trial and their resources.
        capacity: CPUs and GPUs by Ray's names, with what an autoscaler may add.
        num_trials: of the search.
        wanted: trials at a time, as configured; as many as fit if None, on a cluster that grows :data:`ON_GROWING`.

    Raises:
        ConfigError: not even one trial fits, or not as many as wanted.
    """
    if not isinstance(train.num_workers, int):
        raise ConfigError(
            f"train.num_workers is {list(train.num_workers)}: trials that grow and shrink cannot be fitted in side by "
            "side; give one number"
        )
    needs = {"CPU": train.num_workers * train.cpus_per_worker, "GPU": float(train.num_workers if train.use_gpu else 0)}
    # 1e-6: ten times 0.1 CPU are one CPU.
    fitting = min(math.floor(capacity.get(kind, 0.0) / amount + 1e-6) for kind, amount in needs.items() if amount)
    if is_on_demand(capacity):
        fitting = wanted or ON_GROWING
    elif fitting < (wanted or 1):
        asked = " and ".join(f"{amount:g} {kind}" for kind, amount in needs.items() if amount)
        there = " and ".join(f"{capacity.get(kind, 0):g} {kind}" for kind, amount in needs.items() if amount)
        raise ConfigError(
            f"a trial takes {asked} (train.num_workers {train.num_workers}), Ray has {there}: {fitting} at a time fit"
            + (f", {wanted} are asked for (trials.concurrency)" if wanted else "")
            + ". Lower train.num_workers or train.cpus_per_worker"
            + (", or trials.concurrency" if wanted and fitting else "")
        )
    return Split(
        train.num_workers,
        train.cpus_per_worker,
        1 if train.use_gpu else 0,
        min(wanted or fitting, num_trials),
        dict(capacity),
    )


def describe_booked() -> str:
    """How many of Ray's CPUs and GPUs are booked, and by whom, for those who wait for some."""
    import ray
    from ray.util import placement_group_table

    there, free = ray.cluster_resources(), ray.available_resources()
    groups = [group["bundles"].values() for group in placement_group_table().values() if group["state"] == "CREATED"]
    found = []
    for kind in ("CPU", "GPU"):
        if kind not in there:
            continue
        of_groups = sum(bundle.get(kind, 0.0) for bundles in groups for bundle in bundles)
        booked = there[kind] - free.get(kind, 0.0)
        found.append(
            f"of {there[kind]:g} {kind}, {booked:g} are booked: {of_groups:g} by groups of workers, "
            f"{max(0.0, booked - of_groups):g} by other tasks and actors"
        )
    return "; ".join(found) or "Ray has none"
