"""Tables of a forecast: its stages, and what they then took."""

from __future__ import annotations

from collections.abc import Sequence

from raydr.config.plan import Prices
from raydr.graph.forecast import Forecast
from raydr.graph.stage_times import StageTime
from raydr.runtime.console import duration

_GIB = 2**30


def plan_rows(forecast: Forecast, prices: Prices) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of a forecast's table; columns that would be empty are left out."""
    columns = ["stage", "work", "time", "CPUs", "GPUs", "GPU-hours", "GiB a worker", "GiB written", "GiB sent"]
    columns += [prices.currency, "how"]
    rows = []
    for stage in forecast.stages:
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
                f"{stage.network_bytes / _GIB:.0f}" if stage.network_bytes else "",
                "" if cost is None else f"{cost:.2f}",
                stage.note,
            ]
        )
    used = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    return [columns[at] for at in used], [[row[at] for at in used] for row in rows]


def compare(forecast: Forecast, taken: Sequence[StageTime]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of a table of the forecast beside what the stages took.

    >>> from raydr.graph.forecast import StageEstimate
    >>> stage = StageEstimate("train", "", 90, 1, 0, None, 0)
    >>> compare(Forecast((stage,), 10, "cpu", ""), [StageTime(stage="train", seconds=100)])[1]
    [['train', '1 min 30 s', '1 min 40 s', '1.11']]
    """
    # Arms of a refresh have stages of the same name.
    found = {(one.stage, one.key): one for one in taken}
    rows = []
    for stage in forecast.stages:
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
