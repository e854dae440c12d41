"""Forecast of the cost of nodes by ``raydr plan``, stored in the working folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raydr.artefacts.declaration import Node
from raydr.component import Config
from raydr.config.sections import ConfirmAbove, Prices
from raydr.console import duration
from raydr.errors import ConfigError
from raydr.pipeline.running import StageTime
from raydr.store import Folder

#: File of the last forecast in the working folder.
FORECAST_FILE = "forecast.json"
GIB = 2**30


class StageEstimate(Config):
    """Estimated cost of a stage."""

    name: str
    """Name of the stage in the run's report."""

    seconds: float
    """Duration."""

    cpus: float = 0.0
    """CPUs held."""

    gpus: float = 0.0
    """GPUs held."""

    worker_bytes: int = 0
    """Memory of the largest worker; 0 if it was not tried."""

    disk_bytes: int = 0
    """Bytes written."""

    key: str = ""
    """Key of the stage's node, which distinguishes stages of the same name."""

    note: str = ""
    """Remark, such as the kind of an index."""

    def cost(self, prices: Prices) -> float:
        """Return the price of the held resources.

        >>> StageEstimate(name="train", seconds=3600, cpus=4, gpus=2).cost(Prices(cpu_hour=0.05, gpu_hour=2.0))
        4.2
        """
        return (self.cpus * prices.cpu_hour + self.gpus * prices.gpu_hour) * self.seconds / 3600


class Forecast(Config):
    """Forecast of a run."""

    stages: list[StageEstimate]
    """Stages in running order."""

    num_passages: int
    """Size of the corpus."""

    device: str
    """Device that was measured."""

    missing: str = ""
    """Parts without an estimate, as text."""

    scaled: bool = False
    """Whether the corpus size differs from the prepared corpus."""

    @property
    def disk_bytes(self) -> int:
        """Bytes written by all stages."""
        return sum(stage.disk_bytes for stage in self.stages)

    def gpu_hours(self) -> float:
        """Return the GPU-hours of all stages."""
        return sum(stage.seconds * stage.gpus for stage in self.stages) / 3600

    def cost(self, prices: Prices) -> float:
        """Return the price of all stages."""
        return sum(stage.cost(prices) for stage in self.stages)

    def of(self, nodes: Iterable[Node]) -> Forecast:
        """Return the forecast of these nodes only."""
        keys = {node.key for node in nodes}
        return self.model_copy(update={"stages": [stage for stage in self.stages if stage.key in keys]})

    def words(self) -> str:
        """Return the sums as a line of text.

        >>> train = StageEstimate(name="train", seconds=7200, gpus=2, disk_bytes=2**31)
        >>> Forecast(stages=[train], num_passages=10, device="an H100").words()
        '2 h 00 min one after the other, 4.0 GPU-hours, 2.0 GiB written'
        """
        gpus = f"{self.gpu_hours():.1f} GPU-hours, " if self.gpu_hours() else ""
        seconds = sum(stage.seconds for stage in self.stages)
        return f"{duration(seconds)} one after the other, {gpus}{self.disk_bytes / GIB:.1f} GiB written"

    def beside(self, taken: Sequence[StageTime]) -> tuple[list[str], list[list[str]]]:
        """Return columns and rows of a table of planned and measured durations.

        >>> train = StageEstimate(name="train", seconds=90)
        >>> Forecast(stages=[train], num_passages=10, device="cpu").beside([StageTime(stage="train", seconds=100)])[1]
        [['train', '1 min 30 s', '1 min 40 s', '1.11']]
        """
        # Arms of a refresh have stages of the same name.
        times = {(time.stage, time.key): time for time in taken}
        rows = []
        for stage in self.stages:
            actual, ratio = times.get((stage.name, stage.key)), ""
            took = "not run" if actual is None else duration(actual.seconds)
            if actual is not None and actual.num_parts_before:
                # The duration of interrupted attempts is unknown.
                took += ", resumed"
            elif actual is not None:
                ratio = f"{actual.seconds / stage.seconds:.2f}"
            rows.append([stage.name, duration(stage.seconds), took, ratio])
        return ["stage", "planned", "took", "took / planned"], rows


def read_forecast(root: Folder) -> Forecast | None:
    """Read the last forecast of a working folder; None if there is none."""
    return root.read_record(FORECAST_FILE, Forecast) if root.exists(FORECAST_FILE) else None


def check_confirmed(forecast: Forecast, limits: ConfirmAbove | None) -> None:
    """Check a forecast against the limits of what runs without confirmation.

    Args:
        forecast: forecast of the run.
        limits: limits; None for no limit.

    Raises:
        ConfigError: the forecast exceeds a limit.
    """
    amounts = {"gpu_hours": forecast.gpu_hours(), "disk_gib": forecast.disk_bytes / GIB}
    for name, value in amounts.items():
        limit = getattr(limits, name, None)
        if limit is not None and value > limit:
            raise ConfigError(
                f"the forecast is {forecast.words()}, above plan.confirm_above.{name} {limit:g}: pass --yes, or raise "
                "the limit"
            )
