"""Settings of planning: how long to probe, what the devices are and cost."""

from __future__ import annotations

from pydantic import Field

from raydr.component import Config


class DeviceFigures(Config):
    """A device that is not at hand."""

    #: What it is called in the plan.
    name: str
    #: Operations a second that it reaches in matrix products, in the arithmetic that is used.
    flops: float = Field(gt=0)
    #: Share of them that an encoder reaches.
    utilisation: float = Field(default=0.4, gt=0, le=1)


class Prices(Config):
    """What an hour costs; what has no price is not counted."""

    #: Of one CPU.
    cpu_hour: float | None = Field(default=None, ge=0)
    #: Of one GPU.
    gpu_hour: float | None = Field(default=None, ge=0)
    #: Printed beside the sums.
    currency: str = "USD"


class PlanConfig(Config):
    """How ``raydr plan`` estimates."""

    #: Passages that are read for the estimate, spread evenly over the corpus.
    sample_passages: int = Field(default=4000, ge=10)
    #: Seconds that the model is tried in encoding, and again in training.
    probe_seconds: float = Field(default=6, gt=0)
    #: A corpus of so many passages, like those of the prepared one, instead of the prepared one.
    num_passages: int | None = Field(default=None, ge=1)
    #: Encode and train on a device with these figures instead of trying the one that is there.
    device: DeviceFigures | None = None
    prices: Prices = Prices()
