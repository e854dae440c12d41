"""What making nodes will take: what ``raydr plan`` has measured and reckoned, kept in the working folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from raydr.artefacts.declaration import Node
from raydr.config.plan import ConfirmAbove, Prices
from raydr.console import duration
from raydr.errors import ConfigError
from raydr.pipeline.running import StageTime
from raydr.store.folder import Folder

#: The last forecast, in the working folder.
FORECAST_FILE = "forecast.json"
GIB = 2**30


@dataclass(frozen=True)
class StageEstimate:
    """What one stage takes.

    Args:
        name: as the run's report has it.
        seconds: from its beginning to its end.
        cpus: CPUs held meanwhile.
        gpus: GPUs held meanwhile.
        worker_bytes: memory of its largest worker; None if not known.
        disk_bytes: what it writes.
        key: of its node, which tells stages of the same name apart.
        note: what else is to be known, such as the kind of an index.
    """

    name: str
    seconds: float
    cpus: float
    gpus: float
    worker_bytes: int | None
    disk_bytes: int
    key: str = ""
    note: str = ""

    def cost(self, prices: Prices) -> float | None:
        """Money for what it holds; None if nothing of it has a price.

        >>> StageEstimate("train", 3600, 4, 2, None, 0).cost(Prices(cpu_hour=0.05, gpu_hour=2.0))
        4.2
        """
        if prices.cpu_hour is None and prices.gpu_hour is None:
            return None
        return (self.cpus * (prices.cpu_hour or 0.0) + self.gpus * (prices.gpu_hour or 0.0)) * self.seconds / 3600


@dataclass(frozen=True)
class Forecast:
    """What a run will take.

    Args:
        stages: in the order in which they run.
        num_passages: that it was made for.
        device: what it was measured on, or whose figures were used.
        missing: what is not in it, for people.
        scaled: whether it is for a corpus of another size than the prepared one.
    """

    stages: tuple[StageEstimate, ...]
    num_passages: int
    device: str
    missing: str
    scaled: bool = False

    def as_json(self) -> dict[str, Any]:
        """For a file; :meth:`from_json` reads it."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Forecast:
        """Read what :meth:`as_json` wrote."""
        return cls(**{**raw, "stages": tuple(StageEstimate(**stage) for stage in raw["stages"])})

    @property
    def seconds(self) -> float:
        """All stages, one after the other."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def disk_bytes(self) -> int:
        """What all stages write."""
        return sum(stage.disk_bytes for stage in self.stages)

    def gpu_hours(self) -> float:
        """GPUs held, times hours."""
        return sum(stage.seconds * stage.gpus for stage in self.stages) / 3600

    def cost(self, prices: Prices) -> float | None:
        """Money for all stages; None without prices."""
        costs = [stage.cost(prices) for stage in self.stages]
        return None if None in costs else sum(cost for cost in costs if cost is not None)

    def of(self, nodes: Iterable[Node]) -> Forecast:
        """The part that concerns some nodes."""
        keys = {node.key for node in nodes}
        return replace(self, stages=tuple(stage for stage in self.stages if stage.key in keys))

    def words(self) -> str:
        """Its sums as one line.

        >>> Forecast((StageEstimate("train", 7200, 4, 2, None, 2**31),), 10, "an H100", "").words()
        '2 h 00 min one after the other, 4.0 GPU-hours, 2.0 GiB written'
        """
        gpus = f"{self.gpu_hours():.1f} GPU-hours, " if self.gpu_hours() else ""
        return f"{duration(self.seconds)} one after the other, {gpus}{self.disk_bytes / GIB:.1f} GiB written"

    def notes(self) -> dict[str, list[str]]:
        """Notes of stages, each with the names of those that have it."""
        notes = dict.fromkeys(stage.note for stage in self.stages if stage.note)
        return {note: [stage.name for stage in self.stages if stage.note == note] for note in notes}

    def beside(self, taken: Sequence[StageTime]) -> tuple[list[str], list[list[str]]]:
        """Columns and rows of a table of the forecast beside what the stages took.

        >>> Forecast((StageEstimate("train", 90, 1, 0, None, 0),), 10, "cpu", "").beside(
        ...     [StageTime(stage="train", seconds=100)])[1]
        [['train', '1 min 30 s', '1 min 40 s', '1.11']]
        """
        # Arms of a refresh have stages of the same name.
        times = {(time.stage, time.key): time for time in taken}
        rows = []
        for stage in self.stages:
            actual, ratio = times.get((stage.name, stage.key)), ""
            took = "not run" if actual is None else duration(actual.seconds)
            if actual is not None and actual.num_parts_before:
                # What the interrupted attempts took is not known.
                took += ", resumed"
            elif actual is not None:
                ratio = f"{actual.seconds / stage.seconds:.2f}"
            rows.append([stage.name, duration(stage.seconds), took, ratio])
        return ["stage", "planned", "took", "took / planned"], rows


def read_forecast(root: Folder) -> Forecast | None:
    """The last forecast of a working folder; None if there is none for the corpus that is there."""
    if not root.exists(FORECAST_FILE):
        return None
    forecast = Forecast.from_json(root.read_sealed(FORECAST_FILE))
    return None if forecast.scaled else forecast


def check_confirmed(forecast: Forecast, limits: ConfirmAbove | None) -> None:
    """Refuse to begin what takes more than was agreed to.

    Args:
        forecast: of what is about to be made.
        limits: what may be spent without asking; None if everything may.

    Raises:
        ConfigError: it takes more; says how much, and what to give.
    """
    if limits is None:
        return
    amounts = {
        "gpu_hours": (forecast.gpu_hours(), limits.gpu_hours),
        "disk_gib": (forecast.disk_bytes / GIB, limits.disk_gib),
    }
    for name, (value, limit) in amounts.items():
        if limit is not None and value > limit:
            raise ConfigError(
                f"the forecast is {forecast.words()}, and plan.confirm_above.{name} is {limit:g}: give --yes, or raise "
                "the limit"
            )
