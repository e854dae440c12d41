"""What training shows while it runs: a bar on a terminal, one line an epoch everywhere."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from raydr.runtime.console import ProgressBar, progress_bar, say

if TYPE_CHECKING:
    from raydr.training.checkpoint import Progress


class Watcher(Protocol):
    """Whom a training worker tells how far it is; goes to the worker with its arguments."""

    def tell(self, message: str) -> None:
        """A line for people."""

    def step(self, progress: Progress, num_steps: int) -> None:
        """After every step; ``num_steps`` are those of an epoch."""

    def epoch(self, progress: Progress) -> None:
        """After every epoch."""


#: Metrics of an epoch that its line leaves out, or has in words.
_NOT_SHOWN = ("loss", "filled", "skipped_steps", "seconds", "grad_norm")


def _epoch_line(epoch: int, metrics: dict[str, float]) -> str:
    filled, skipped = metrics.get("filled", 0.0), metrics.get("skipped_steps", 0.0)
    shown = {"loss": metrics["loss"]}
    shown |= {key: value for key, value in metrics.items() if key not in _NOT_SHOWN}
    line = f"epoch {epoch}: " + ", ".join(f"{key} {value:.4f}" for key, value in shown.items())
    line += f"; {filled:,.0f} negatives filled at random" if filled else ""
    return line + (f"; {skipped:,.0f} steps left out: float16 overflowed" if skipped else "")


@dataclass(frozen=True)
class ConsoleWatcher:
    """Shows a training of this process."""

    bar: ProgressBar
    num_epochs: int

    def tell(self, message: str) -> None:
        say(message)

    def step(self, progress: Progress, num_steps: int) -> None:
        self.bar.set(progress.epoch * num_steps + progress.step, num_steps * self.num_epochs)

    def epoch(self, progress: Progress) -> None:
        say(_epoch_line(progress.epoch, progress.history[-1].metrics))


@contextmanager
def training_here(num_epochs: int) -> Iterator[Watcher]:
    """A watcher for a training of this process."""
    with progress_bar("training", total=1, unit="steps") as bar:
        yield ConsoleWatcher(bar, num_epochs)


@dataclass(frozen=True)
class BoardWatcher:
    """Writes on the board that a :class:`TrainingView` shows."""

    board: Any

    def tell(self, message: str) -> None:
        self.board.tell.remote(message)

    def step(self, progress: Progress, num_steps: int) -> None:
        self.board.step.remote(progress.epoch, progress.step, num_steps)

    def epoch(self, progress: Progress) -> None:
        self.board.epoch.remote(progress.epoch, progress.history[-1].metrics)


class _Board:
    """Ray actor that rank 0 writes to and the driver reads from."""

    def __init__(self) -> None:
        self.messages: deque[str] = deque()
        self.steps = 0
        self.total = 0

    def tell(self, message: str) -> None:
        self.messages.append(message)

    def step(self, epoch: int, step: int, num_steps: int) -> None:
        self.steps = epoch * num_steps + step
        self.total = num_steps

    def epoch(self, epoch: int, metrics: dict[str, float]) -> None:
        self.messages.append(_epoch_line(epoch, metrics))

    def read(self) -> tuple[list[str], int, int]:
        messages = list(self.messages)
        self.messages.clear()
        return messages, self.steps, self.total


class TrainingView:
    """Shows on the driver how far a group of Ray Train is, while the trainer blocks it."""

    def __init__(self, num_epochs: int) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.num_epochs = num_epochs
        # Beside the driver: on another node it could be lost while the training goes on.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.actor: Any = ray.remote(num_cpus=0, scheduling_strategy=here)(_Board).remote()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return BoardWatcher(self.actor)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        self._stop.set()
        self._thread.join()
        ray.kill(self.actor)

    def _follow(self) -> None:
        with progress_bar("training", total=1, unit="steps") as bar:
            while not self._stop.wait(0.5):
                self._show(bar)
            self._show(bar)

    def _show(self, bar: ProgressBar) -> None:
        import ray

        messages, steps, num_steps = ray.get(self.actor.read.remote())
        if num_steps:
            bar.set(steps, num_steps * self.num_epochs)
        for message in messages:
            say(message)
