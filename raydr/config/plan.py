"""Settings of planning: how long to try the model, and what machines cost."""

from __future__ import annotations

from pydantic import Field

from raydr.component import Config


class Prices(Config):
    """What an hour costs."""

    cpu_hour: float = Field(default=0, ge=0)
    """Of one CPU."""

    gpu_hour: float = Field(default=0, ge=0)
    """Of one GPU."""

    currency: str = "USD"
    """Printed beside the sums."""


class ConfirmAbove(Config):
    """What a verb may spend without ``--yes``, by the forecast that ``raydr plan`` has left; null: any amount."""

    gpu_hours: float | None = Field(default=100, ge=0)
    """GPUs held, times hours."""

    disk_gib: float | None = Field(default=1000, ge=0)
    """GiB written to the working folder."""


class PlanConfig(Config):
    """How ``raydr plan`` estimates, and what its forecast may be before a verb asks."""

    sample_passages: int = Field(default=4000, ge=10)
    """Passages that are read for the estimate, spread evenly over the corpus."""

    probe_seconds: float = Field(default=6, gt=0)
    """Seconds that the model is tried in encoding, and again in training."""

    num_passages: int | None = Field(default=None, ge=1)
    """A corpus of so many passages, like those of the prepared one, instead of the prepared one."""

    network_gbits: float = Field(default=10, gt=0)
    """Gbit/s between two machines that train together."""

    workers_per_machine: int = Field(default=1, ge=1)
    """Training workers on one machine: they send each other gradients without the network."""

    prices: Prices = Prices()

    confirm_above: ConfirmAbove | None = ConfirmAbove()
    """Nothing is asked if null, as with ``--yes``."""
