"""What a training reports: to the loop's listener, and from rank 0 to people and to a tracker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from raydr.data.schema import write_parquet
from raydr.store.folder import Folder
from raydr.training.checkpoint import Progress, Save

# A node is declared with a watcher, and that must not take the seconds that importing PyTorch does.
if TYPE_CHECKING:
    from raydr.training.detection import PairFlags
    from raydr.training.process import WorkerProcess


class Listener(Protocol):
    """Callbacks of a training. Every rank calls every method the same number of times."""

    def on_step(self, progress: Progress, num_steps: int, metrics: dict[str, float]) -> None:
        """Report an optimiser step; ``metrics`` is empty except every ``log_steps``."""

    def on_detection(self, progress: Progress, flags: PairFlags) -> None:
        """Report a detection of mismatched pairs."""

    def on_checkpoint(self, progress: Progress, copy: Callable[[], Save]) -> None:
        """Report that the state should be saved; ``copy`` copies it at once, and only rank 0 calls the result."""


class Watcher(Protocol):
    """Shows people how far a training is; picklable, since it goes to the process of rank 0."""

    def tell(self, message: str) -> None:
        """Show a line."""

    def step(self, progress: Progress, num_steps: int) -> None:
        """Show an optimiser step; ``num_steps`` are those of an epoch."""

    def epoch(self, progress: Progress) -> None:
        """Show a finished epoch, the last of ``progress.history``."""


class Report(Watcher, Protocol):
    """Where rank 0 reports to."""

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Record figures by name, at a step or an epoch."""


class Reports(Protocol):
    """Opens the report in the process of rank 0; picklable."""

    def open(self) -> AbstractContextManager[Report]: ...


class NoReport:
    """The report of the other ranks."""

    def tell(self, message: str) -> None:
        """Show nothing."""

    def step(self, progress: Progress, num_steps: int) -> None:
        """Show nothing."""

    def epoch(self, progress: Progress) -> None:
        """Show nothing."""

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Record nothing."""


#: Figures of an epoch that its line leaves out, or has in words.
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


class WorkerListener:
    """The listener of a worker: writes states and flags, and reports from rank 0.

    Args:
        report: of this rank.
        process: writes the states.
        output: the folder of the model; flags go into ``detection/``.
    """

    def __init__(self, report: Report, process: WorkerProcess, output: Folder) -> None:
        self.report = report
        self.process = process
        self.output = output
        #: Ids of the training queries in the order of the detector's flags; set when the examples are loaded.
        self.query_ids: list[str] = []
        #: After the last epoch whose state was reported to the process.
        self._progress: Progress | None = None
        self._num_told = 0

    def on_step(self, progress: Progress, num_steps: int, metrics: dict[str, float]) -> None:
        if self.process.rank:
            return
        if self.process.kept():
            self.tell_epochs()
        self.report.step(progress, num_steps)
        if metrics:
            self.report.log({f"step/{key}": value for key, value in metrics.items()}, progress.global_step)

    def on_detection(self, progress: Progress, flags: PairFlags) -> None:
        if self.process.rank:
            return
        detection = progress.detections[-1]
        known = {key: detection[key] for key in ("precision", "recall", "auroc") if detection.get(key) is not None}
        facts = ", ".join(f"{key} {value:.3f}" for key, value in known.items())
        message = f"{detection['share_flagged']:.1%} of the pairs flagged" + (f" ({facts})" if facts else "")
        if detection["reason"]:
            message = f"detection is inconclusive, and all pairs are kept: {detection['reason']}"
        self.report.tell(f"epoch {progress.epoch + 1}: {message}")
        numbers = {"share_flagged": detection["share_flagged"]} | known
        self.report.log({f"detection/{key}": value for key, value in numbers.items()}, progress.epoch)
        table = pa.table(
            {
                "query_id": self.query_ids,
                "perplexity": flags.perplexities.pairs_N,
                "random_pair": flags.perplexities.random_N,
                "log_posterior": flags.detection.log_posterior,
                "clean": flags.clean,
            }
        )
        with self.output.publish(f"detection/epoch-{progress.epoch + 1:03d}.parquet") as path:
            write_parquet(table, path)

    def on_checkpoint(self, progress: Progress, copy: Callable[[], Save]) -> None:
        finished_epoch = progress.step == 0
        if self.process.rank == 0:
            self.process.wait()
            self.tell_epochs()
        metrics = dict(progress.history[-1].metrics) if finished_epoch and progress.history else {}
        facts = {"epoch": progress.epoch, "step": progress.step, "global_step": progress.global_step}
        self.process.report(facts | metrics, copy)
        self._progress = progress if finished_epoch else self._progress

    def tell_epochs(self) -> None:
        """Report the epochs that were not reported yet.

        Called when their state is written: whoever reads of an epoch may end this process and resume after it.
        """
        progress = self._progress
        if self.process.rank or progress is None:
            return
        for row in progress.history[self._num_told :]:
            history = progress.history[: row.epoch + 1]
            self.report.epoch(progress.changed(epoch=row.epoch + 1, history=history))
            self.report.log({f"epoch/{key}": value for key, value in row.metrics.items()}, row.epoch + 1)
            self._num_told = row.epoch + 1
