"""Values that change with the epoch."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from raydr.component import Config


class BetaSchedule(Config):
    """β of the robust contrastive loss by epoch: nothing, then a constant or a linear ramp to it.

    β(e) = 0                                                            for e < start_epoch
    β(e) = initial + (final − initial) · min((e − start_epoch + 1) / ramp_epochs, 1)   from then on;
    with ``ramp_epochs`` 0 it is ``final`` at once. In a config a bare number stands for ``{final: number}``.

    Source: Wang et al. (AAAI 2024): never from step 0, after some normal training; hence ``start_epoch`` 1 by default.
        Set it to 0 only where training starts from a trained retriever, as the passage sieve does.

    >>> [BetaSchedule(final=0.4, start_epoch=1, ramp_epochs=2).value(epoch) for epoch in range(4)]
    [0.0, 0.2, 0.4, 0.4]
    """

    final: float = Field(ge=0.0, le=1.0)
    """β at the end, 0 (plain NCE) to 1."""

    start_epoch: int = Field(default=1, ge=0)
    """Finished epochs before β is switched on."""

    ramp_epochs: int = Field(default=0, ge=0)
    """Epochs until ``final`` is reached; the first of them is a step above ``initial``."""

    initial: float = Field(default=0.0, ge=0.0, le=1.0)
    """Where the ramp comes from."""

    @model_validator(mode="before")
    @classmethod
    def _accept_number(cls, value: Any) -> Any:
        return {"final": value} if isinstance(value, int | float) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _initial_needs_ramp(self) -> BetaSchedule:
        if self.initial != 0.0 and self.ramp_epochs == 0:
            raise ValueError(f"initial={self.initial} has no effect with ramp_epochs=0; set ramp_epochs >= 1")
        return self

    def value(self, epoch: int) -> float:
        """Return β after ``epoch`` finished epochs."""
        if epoch < self.start_epoch:
            return 0.0
        if self.ramp_epochs == 0:
            return self.final
        progress = min((epoch - self.start_epoch + 1) / self.ramp_epochs, 1.0)
        return self.initial + (self.final - self.initial) * progress
