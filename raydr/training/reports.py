"""Reports of a training: to the listener of the loop, and from rank 0 to a watcher and a log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from raydr.data.tables import write_parquet
from raydr.store.folder import Folder
from raydr.training.checkpoint import Progress, Save

# Declarations of nodes name watchers, and importing PyTorch would delay them by seconds.
if TYPE_CHECKING:
    from raydr.training.detection import PairFlags
    from raydr.training.process import WorkerProcess


class Listener(Protocol):
    """Callbacks of a training. Every rank calls every method the same number of times."""

    def on_step(self, progress: Progress, num_steps: int, metrics: dict[str, float]) -> None:
        """Report an optimiser step; ``metrics`` is empty except at logged steps."""

    def on_detection(self, progress: Progress, flags: PairFlags) -> None:
        """Report a detection of mismatched pairs."""

    def has_notice(self) -> bool:
        """Return whether a node of the group is about to be taken back, equal on every rank."""

    def on_checkpoint(self, progress: Progress, copy: Callable[[], Save]) -> None:
        """Request that the state is saved; ``copy`` copies it to host memory and returns its writer."""


class Watcher(Protocol):
    """Display of a training's progress; picklable, since it is sent to the process of rank 0."""

    def tell(self, message: str) -> None:
        """Show a line."""

    def step(self, progress: Progress, num_steps: int) -> None:
        """Show an optimiser step; ``num_steps`` is the number of steps of an epoch."""

    def epoch(self, progress: Progress) -> None:
        """Show a finished epoch, the last of ``progress.history``."""


class Log(Protocol):
    """Record of a training's figures."""

    def log_metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        """Record figures by name, at a step or an epoch."""


class LogPlace(Protocol):
    """Place of a log, which the process of rank 0 opens; picklable."""

    def open(self) -> AbstractContextManager[Log]:
        """Open the log for the duration of the block."""


#: Figures of an epoch that its line leaves out or shows in words.
_NOT_SHOWN = ("loss", "filled", "skipped_steps", "seconds", "grad_norm")


def epoch_line(progress: Progress) -> str:
    """Return the line of the last finished epoch."""
    metrics = progress.history[-1].metrics
    filled, skipped = metrics.get("filled", 0.0), metrics.get("skipped_steps", 0.0)
    shown = {"loss": metrics["loss"]}
    shown |= {key: value for key, value in metrics.items() if key not in _NOT_SHOWN}
    line = f"epoch {progress.epoch}: " + ", ".join(f"{key} {value:.4f}" for key, value in shown.items())
    line += f"; {filled:,.0f} negatives filled at random" if filled else ""
    return line + (f"; {skipped:,.0f} steps left out: float16 overflowed" if skipped else "")


@dataclass
class WorkerListener:
    """The listener of a worker, which writes states and flags, and reports from rank 0.

    Args:
        watcher: display of the progress.
        log: record of figures; None records nothing.
        process: process that writes the states.
        output: folder of the model, with the flags in ``detection/``.
    """

    watcher: Watcher
    log: Log | None
    process: WorkerProcess
    output: Folder
    #: Ids of the training queries in the order of the detector's flags; set when the examples are loaded.
    query_ids: list[str] = field(default_factory=list)
    #: Progress after the last epoch whose state was reported to the process.
    progress: Progress | None = None
    #: Number of epochs that were shown.
    num_shown: int = 0

    def tell(self, message: str) -> None:
        """Show a line, from rank 0."""
        if not self.process.rank:
            self.watcher.tell(message)

    def on_step(self, progress: Progress, num_steps: int, metrics: dict[str, float]) -> None:
        if self.process.rank:
            return
        if self.process.kept():
            self.show_epochs()
        self.watcher.step(progress, num_steps)
        if metrics:
            self._record("step", metrics, progress.global_step)

    def on_detection(self, progress: Progress, flags: PairFlags) -> None:
        if self.process.rank:
            return
        detection = progress.detections[-1]
        known = {key: detection[key] for key in ("precision", "recall", "auroc") if detection.get(key) is not None}
        facts = ", ".join(f"{key} {value:.3f}" for key, value in known.items())
        message = f"{detection['share_flagged']:.1%} of the pairs are flagged" + (f" ({facts})" if facts else "")
        if detection["reason"]:
            message = f"detection is inconclusive, and all pairs are kept: {detection['reason']}"
        self.tell(f"epoch {progress.epoch + 1}: {message}")
        self._record("detection", {"share_flagged": detection["share_flagged"]} | known, progress.epoch)
        table = pa.table(
            {
                "query_id": self.query_ids,
                "margin": flags.margins.pairs_N,
                "random_pair": flags.margins.random_N,
                "log_posterior": flags.detection.log_posterior,
                "clean": flags.clean,
            }
        )
        with self.output.publish(f"detection/epoch-{progress.epoch + 1:03d}.parquet") as path:
            write_parquet(table, path)

    def has_notice(self) -> bool:
        return self.process.has_notice()

    def on_checkpoint(self, progress: Progress, copy: Callable[[], Save]) -> None:
        finished_epoch = progress.step == 0
        if self.process.rank == 0:
            self.process.wait()
            self.show_epochs()
        metrics = dict(progress.history[-1].metrics) if finished_epoch and progress.history else {}
        report = {"epoch": progress.epoch, "step": progress.step, "global_step": progress.global_step, **metrics}
        self.process.report(report, copy)
        self.progress = progress if finished_epoch else self.progress

    def show_epochs(self) -> None:
        """Show the epochs that were not shown before.

        Call it after their state is written, so that whoever reads about an epoch can stop and resume after it.
        """
        progress = self.progress
        if self.process.rank or progress is None:
            return
        for row in progress.history[self.num_shown :]:
            history = progress.history[: row.epoch + 1]
            self.watcher.epoch(progress.changed(epoch=row.epoch + 1, history=history))
            self._record("epoch", row.metrics, row.epoch + 1)
            self.num_shown = row.epoch + 1

    def _record(self, what: str, figures: Mapping[str, float], step: int) -> None:
        if self.log is not None:
            self.log.log_metrics({f"{what}/{key}": value for key, value in figures.items()}, step)
