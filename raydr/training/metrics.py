"""Figures of training steps, which stay on the device until they are logged, and their means over ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from raydr.training.collectives import mean_over_ranks

#: Figures by name; those of a network are tensors on its device.
Figures = dict[str, Tensor | float]


def add_figures(sums: Figures, figures: Figures, share: float = 1.0) -> Figures:
    """Add a share of further figures to sums, in double precision, without waiting for the device.

    >>> add_figures({"loss": 1.0}, {"loss": 4.0, "filled": 2.0}, share=0.5)
    {'loss': 3.0, 'filled': 1.0}
    """
    total = dict(sums)
    for name, value in figures.items():
        exact = value.detach().float().double() if isinstance(value, Tensor) else value
        total[name] = total.get(name, 0.0) + exact * share
    return total


def as_numbers(figures: Figures) -> dict[str, float]:
    """Return the figures as numbers, in a single copy from the device.

    >>> as_numbers({"loss": torch.tensor(2.0), "filled": 1.0, "norm": torch.tensor(3.0)})
    {'filled': 1.0, 'loss': 2.0, 'norm': 3.0}
    """
    tensors = {name: value for name, value in figures.items() if isinstance(value, Tensor)}
    numbers = {name: value for name, value in figures.items() if not isinstance(value, Tensor)}
    if tensors:
        device = next(
            (tensor.device for tensor in tensors.values() if tensor.device.type != "cpu"), torch.device("cpu")
        )
        copied = torch.stack([tensor.detach().double().to(device) for tensor in tensors.values()]).tolist()
        numbers |= dict(zip(tensors, copied, strict=True))
    return numbers


def numbers_over_ranks(numbers: dict[str, float], device: torch.device) -> dict[str, float]:
    """Return the mean of each number over all ranks."""
    names = sorted(numbers)
    values = mean_over_ranks(torch.tensor([numbers[name] for name in names], dtype=torch.float64, device=device))
    return dict(zip(names, values.tolist(), strict=True))


#: Parts of a step: waiting for the batch, forward pass, forward pass of the teacher, exchange of vectors, scores and
#: loss, backward pass with the exchange of gradients, and optimiser with the EMA.
PARTS = ("data", "forward", "teacher", "exchange", "loss", "backward", "optimizer")


class StepClock:
    """Clock of a step and of its parts.

    A GPU works asynchronously: a timed step waits for it at the begin of the step, and at the end of each part.

    Args:
        device: device of the network.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.timed = False
        self.started = 0.0
        self.seconds: dict[str, float] = {}

    def start(self, timed: bool) -> None:
        """Start a step, whose parts are measured if ``timed``."""
        self.timed = timed
        self.seconds = {}
        if timed:
            self._wait()
        self.started = time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time inside the block to a part of :data:`PARTS`."""
        if not self.timed:
            yield
            return
        started = time.perf_counter()
        yield
        self._wait()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

    def metrics(self) -> dict[str, float]:
        """Return ``seconds`` since the start of the step, and ``seconds/PART`` of each measured part."""
        parts = {f"seconds/{name}": self.seconds[name] for name in PARTS if name in self.seconds}
        return {"seconds": time.perf_counter() - self.started, **parts}

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
