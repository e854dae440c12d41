"""What a training worker reports, and when."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from raydr.store.folder import Folder
from raydr.training.checkpoint import EpochRow, Progress, Save
from raydr.training.process import WorkerProcess
from raydr.training.reports import WorkerListener


class SlowProcess:
    """Keeps a state when it is let, or waited for."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.reported: list[int] = []
        self.is_kept = True

    def report(self, metrics: dict[str, Any], copy: Callable[[], Save]) -> None:
        self.wait()
        self.reported.append(metrics["global_step"])
        self.is_kept = False

    def kept(self) -> bool:
        return self.is_kept

    def wait(self) -> None:
        self.is_kept = True


class Recorder:
    """A watcher that keeps the epochs it was told of."""

    def __init__(self) -> None:
        self.epochs: list[tuple[int, int]] = []

    def tell(self, message: str) -> None:
        """Nothing to do."""

    def step(self, progress: Progress, num_steps: int) -> None:
        """Nothing to do."""

    def epoch(self, progress: Progress) -> None:
        self.epochs.append((progress.epoch, len(progress.history)))


def after(epoch: int, step: int) -> Progress:
    """Of epochs of 10 steps."""
    rows = [EpochRow(epoch=number, metrics={"loss": 1.0}) for number in range(epoch)]
    return Progress(epoch=epoch, step=step, global_step=10 * epoch + step, history=rows)


def no_state() -> Save:
    raise AssertionError("the process takes the state")


@pytest.mark.parametrize("rank", [0, 1])
def test_an_epoch_is_told_of_when_its_state_is_kept(rank: int, tmp_path: Path) -> None:
    """Who hears of it may end the process, and goes on from there."""
    process, watcher = SlowProcess(rank), Recorder()
    listener = WorkerListener(watcher, None, cast(WorkerProcess, process), Folder(str(tmp_path)))

    def epochs() -> list[int]:
        return [epoch for epoch, num_rows in watcher.epochs if epoch == num_rows]

    listener.on_checkpoint(after(1, 0), no_state)
    listener.on_step(after(1, 1), 10, {})
    assert epochs() == []
    process.is_kept = True
    listener.on_step(after(1, 2), 10, {})
    listener.on_step(after(1, 3), 10, {})
    assert epochs() == [1] * (rank == 0)
    # The next state waits for the one before; what that was of is told.
    listener.on_checkpoint(after(2, 0), no_state)
    listener.on_checkpoint(after(2, 5), no_state)
    assert epochs() == [1, 2] * (rank == 0)
    # What breaks off in an epoch has nothing new to tell of.
    process.is_kept = True
    listener.on_step(after(2, 6), 10, {})
    listener.on_checkpoint(after(3, 0), no_state)
    process.wait()
    listener.show_epochs()
    assert epochs() == [1, 2, 3] * (rank == 0)
    # Every rank reports the same number of times.
    assert process.reported == [10, 20, 25, 30]
