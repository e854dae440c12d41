"""A plan: the estimates of all stages with what they rest on; kept, shown, and compared with what the run then took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from raydr.config.plan import Prices
from raydr.graph.stage_times import StageTime
from raydr.ops.plan.estimate import StageEstimate

#: The last plan, in the working folder.
PLAN_FILE = "plan.json"

_GIB = 2**30


@dataclass(frozen=True)
class RunPlan:
    """What a run will take.

    Args:
        stages: in the order in which they run.
        num_passages: that it was made for.
        device: what it was measured on, or whose figures were used.
        missing: what is not in it, for people.
    """

    stages: tuple[StageEstimate, ...]
    num_passages: int
    device: str
    missing: str

    def as_json(self) -> dict[str, Any]:
        """For a file; :meth:`from_json` reads it."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> RunPlan:
        """Read what :meth:`as_json` wrote."""
        return cls(**{**raw, "stages": tuple(StageEstimate(**stage) for stage in raw["stages"])})

    @property
    def seconds(self) -> float:
        """All stages, one after the other."""
        return sum(stage.seconds for stage in self.stages)

    def gpu_hours(self) -> float:
        """GPUs held, times hours."""
        return sum(stage.seconds * stage.gpus for stage in self.stages) / 3600

    def cost(self, prices: Prices) -> float | None:
        """Money for all stages; None without prices."""
        costs = [stage.cost(prices.cpu_hour, prices.gpu_hour) for stage in self.stages]
        return None if None in costs else sum(cost for cost in costs if cost is not None)


def plan_rows(plan: RunPlan, prices: Prices) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of a plan's table; columns that would be empty are left out."""
    columns = ["stage", "work", "time", "CPUs", "GPUs", "GPU-hours", "GiB a worker", "GiB written", prices.currency]
    columns.append("how")
    rows = []
    for stage in plan.stages:
        cost = stage.cost(prices.cpu_hour, prices.gpu_hour)
        rows.append(
            [
                stage.name,
                stage.work,
                duration(stage.seconds),
                f"{stage.cpus:g}",
                f"{stage.gpus:g}" if stage.gpus else "",
                f"{stage.seconds * stage.gpus / 3600:.2f}" if stage.gpus else "",
                "" if stage.worker_bytes is None else f"{stage.worker_bytes / _GIB:.2f}",
                f"{stage.disk_bytes / _GIB:.2f}",
                "" if cost is None else f"{cost:.2f}",
                stage.note,
            ]
        )
    used = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    return [columns[at] for at in used], [[row[at] for at in used] for row in rows]


def compare(plan: RunPlan, taken: Sequence[StageTime]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of a table of the plan beside what the stages took.

    >>> stage = StageEstimate("train", "", 90, 1, 0, None, 0)
    >>> compare(RunPlan((stage,), 10, "cpu", ""), [StageTime(stage="train", seconds=100)])[1]
    [['train', '1 min 30 s', '1 min 40 s', '1.11']]
    """
    # Arms of a refresh have stages of the same name.
    found = {(one.stage, one.key): one for one in taken}
    rows = []
    for stage in plan.stages:
        actual = found.get((stage.name, stage.key))
        planned = duration(stage.seconds)
        if actual is None:
            rows.append([stage.name, planned, "not run", ""])
        elif actual.num_parts_before:
            # What the interrupted attempts took is not known.
            rows.append([stage.name, planned, f"{duration(actual.seconds)}, resumed", ""])
        else:
            rows.append([stage.name, planned, duration(actual.seconds), f"{actual.seconds / stage.seconds:.2f}"])
    return ["stage", "planned", "took", "took / planned"], rows


def duration(seconds: float) -> str:
    """
    >>> duration(7.25), duration(100), duration(3661), duration(90 * 3600)
    ('7.2 s', '1 min 40 s', '1 h 01 min', '90 h 00 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
