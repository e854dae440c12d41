"""Trainings of Ray Train that wait at a step to be killed or interrupted, or whose disk is full."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from raydr.training.checkpoint import Progress
from tests.kept_states import has_kept_state

#: Seconds between two looks.
_LOOK_S = 0.05


@dataclass(frozen=True)
class Held:
    """A watcher that holds the training on at a step, once; it goes to the worker.

    Args:
        folder: where it leaves the worker's process id, and what it was told.
        at: the epoch, from 0, and the steps of it that are done.
    """

    folder: Path
    at: tuple[int, int]

    @property
    def place(self) -> Path:
        return self.folder / "held"

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text()

    def tell(self, message: str) -> None:
        with open(self.folder / "output", "a") as file:
            file.write(f"{message}\n")

    def step(self, progress: Progress, num_steps: int) -> None:
        if (progress.epoch, progress.step) == self.at and not self.place.exists():
            self.place.with_name("pid").write_text(str(os.getpid()))
            self.place.with_name("pid").rename(self.place)
            threading.Event().wait()

    def epoch(self, progress: Progress) -> None:
        """Nothing is held then."""

    def strike(self, state: Path, how: Callable[[int], None]) -> None:
        """In a thread: once the training is held and a state of it is kept, ``how`` is called with its process id."""

        def wait() -> None:
            # However long it takes to begin.
            while not (self.place.exists() and has_kept_state(state)):
                time.sleep(_LOOK_S)
            how(int(self.place.read_text()))

        threading.Thread(target=wait, daemon=True).start()


@dataclass(frozen=True)
class FullDisk:
    """A watcher whose disk is full when the first epoch is over; it goes to the worker.

    Args:
        folder: where it leaves a file for each try.
    """

    folder: Path

    def tell(self, message: str) -> None:
        """Nobody is told."""

    def step(self, progress: Progress, num_steps: int) -> None:
        """Nothing is full then."""

    def epoch(self, progress: Progress) -> None:
        (self.folder / str(time.monotonic_ns())).touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
