"""Progress of a training: a bar on a terminal, and a line per epoch."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from raydr.console import ProgressBar, progress_bar, say, show_table
from raydr.distributed.cluster import start_ray
from raydr.training.checkpoint import Progress
from raydr.training.reports import Watcher, epoch_line


def show_history(title: str, history: Sequence[Mapping[str, Any]], hidden: Collection[str] = ()) -> None:
    """Print the metrics of each epoch; a metric that begins after the warm-up is blank before."""
    names = sorted({name for row in history for name in row["metrics"]} - set(hidden))
    rows = (
        [row["epoch"] + 1, *(f"{row['metrics'][name]:.4f}" if name in row["metrics"] else "" for name in names)]
        for row in history
    )
    show_table(title, ["epoch", *names], rows)


def _how_far(progress: Progress, num_steps: int) -> tuple[int, int]:
    """Return the steps done and the steps of an epoch; its end counts as a step, so that no bar is full earlier."""
    return progress.epoch * (num_steps + 1) + progress.step, num_steps + 1


@dataclass(frozen=True)
class ConsoleWatcher:
    """Watcher that shows a training of this process."""

    bar: ProgressBar
    num_epochs: int

    def tell(self, message: str) -> None:
        say(message)

    def step(self, progress: Progress, num_steps: int) -> None:
        num_done, an_epoch = _how_far(progress, num_steps)
        self.bar.set(num_done, an_epoch * self.num_epochs)

    def epoch(self, progress: Progress) -> None:
        say(epoch_line(progress))


@contextmanager
def training_here(num_epochs: int) -> Iterator[Watcher]:
    """Yield a watcher for a training of this process."""
    with progress_bar("training", total=1, unit="steps") as bar:
        yield ConsoleWatcher(bar, num_epochs)


class _Board:
    """Ray actor that receives the progress of rank 0 for the driver."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.done = (0, 0)

    def tell(self, message: str) -> None:
        self.messages.append(message)

    def step(self, num_done: int, num_steps: int) -> None:
        self.done = (num_done, num_steps)

    def read(self) -> tuple[list[str], int, int]:
        messages, self.messages = self.messages, []
        return messages, *self.done


@dataclass(frozen=True)
class BoardWatcher:
    """Watcher that sends progress to the board of :func:`training_on_ray`."""

    board: Any

    def tell(self, message: str) -> None:
        self.board.tell.remote(message)

    def step(self, progress: Progress, num_steps: int) -> None:
        self.board.step.remote(*_how_far(progress, num_steps))

    def epoch(self, progress: Progress) -> None:
        self.board.tell.remote(epoch_line(progress))


@contextmanager
def training_on_ray(num_epochs: int) -> Iterator[Watcher]:
    """Yield a watcher for a group of Ray Train; a thread shows the progress while the trainer blocks the driver."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    start_ray()
    # On the driver's node, so that it is not lost while the training continues.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    board: Any = ray.remote(num_cpus=0, scheduling_strategy=here)(_Board).remote()
    ended = threading.Event()

    def follow() -> None:
        with progress_bar("training", total=1, unit="steps") as bar:
            while not ended.wait(0.5):
                show(bar)
            show(bar)

    def show(bar: ProgressBar) -> None:
        messages, num_done, num_steps = ray.get(board.read.remote())
        if num_steps:
            bar.set(num_done, num_steps * num_epochs)
        for message in messages:
            say(message)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield BoardWatcher(board)
    finally:
        ended.set()
        thread.join()
        ray.kill(board)
