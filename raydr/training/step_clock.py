"""Where the time of a training step goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

#: Parts of a step: waiting for the batch, the encoders' forward pass, the teacher's, exchanging vectors, scores and
#: loss, the backward pass with its exchange of gradients, and the optimiser with the EMA.
PARTS = ("data", "forward", "teacher", "exchange", "loss", "backward", "optimizer")


class StepClock:
    """Seconds of each part of a step.

    A GPU works behind the program's back, so each part waits for it at its end; only steps that are timed do.

    Args:
        device: of the network.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.timed = False
        self.seconds: dict[str, float] = {}

    def start(self, timed: bool) -> None:
        """Begin a step."""
        self.timed = timed
        self.seconds = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time spent inside to a part of :data:`PARTS`."""
        if not self.timed:
            yield
            return
        started = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

    def metrics(self) -> dict[str, float]:
        """``seconds/PART`` of the parts that were timed."""
        return {f"seconds/{name}": self.seconds[name] for name in PARTS if name in self.seconds}
