"""The book of a search: what every trial has come to, on disk, in MLflow and on the console.

Kept by the driver. Each trial is a file ``trials/trial-NNN.json`` that is written anew after every epoch, and recorded
as a part of the artefact once the trial is over. A search that was killed goes on from the book.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raydr.errors import TuningError
from raydr.runtime.console import ProgressBar, say
from raydr.runtime.tracking import Tracker
from raydr.store.artifact import Artifact, Building, Part
from raydr.store.folder import Folder
from raydr.tuning.distributions import as_text
from raydr.tuning.resources import describe_booked
from raydr.tuning.trials import Row, Status, Trial, best_trial

#: Folders of the trials' own files below the search's: their states while they run, the model of the best.
PLACES = "places"

#: What removes files of a trial that is over: its values, and those of the trials that are kept.
Forget = Callable[[Mapping[str, Any], Sequence[Mapping[str, Any]]], None]


class Book:
    """All trials of a search.

    Args:
        making: the search's artefact.
        tracker: its MLflow run; each trial is nested in it.
        total: trials there will be.
        bar: progress in trials.
        unit: what a trial is measured after, for messages.
        forget: removes what a trial has left outside its folder, given its values and those of the trials kept.
        max_wait_s: how long a trial may wait for its CPUs and GPUs.
    """

    def __init__(
        self,
        making: Building,
        tracker: Tracker,
        total: int,
        bar: ProgressBar,
        unit: str,
        forget: Forget,
        max_wait_s: float,
    ) -> None:
        self.making = making
        self.tracker = tracker
        self.total = total
        self.bar = bar
        self.unit = unit
        self.forget = forget
        self.max_wait_s = max_wait_s
        self.trials: dict[int, Trial] = {}
        self._trackers: dict[int, Tracker] = {}
        self._forgotten: set[int] = set()
        #: When the running trials began or finished their last epoch.
        self._since: dict[int, float] = {}
        for name in making.folder.files("trials"):
            trial = Trial.model_validate(making.folder.read_json(name))
            self.trials[trial.number] = trial
            if trial.over and name not in making.done:
                # The search was killed between the two writes of a trial's end.
                self._record(trial)
        bar.advance(sum(trial.over for trial in self.trials.values()))

    def place(self, number: int) -> Folder:
        """A trial's own folder."""
        return place_of(self.making.folder, number)

    def listed(self) -> list[Trial]:
        """All trials by number."""
        return [self.trials[number] for number in sorted(self.trials)]

    # -- what happens

    def begin(self, number: int, values: Mapping[str, Any]) -> Trial:
        """A trial is proposed."""
        self._write(Trial(number=number, values=dict(values)))
        return self.trials[number]

    def start(self, number: int) -> None:
        """A trial starts, or goes on after the search was interrupted."""
        trial = self.trials[number]
        settings = ", ".join(f"{_last(key)} {as_text(value)}" for key, value in trial.values.items())
        default = " (the default)" if number == 0 else ""
        say(
            f"trial {number}{default}: {settings}"
            + (f"; goes on after {self.unit} {trial.epochs}" if trial.rows else "")
        )
        tracker = self.tracker.child(f"trial-{number:03d}", {"raydr.trial": str(number)})
        tracker.log_params(trial.values)
        self._trackers[number] = tracker
        # What an interrupted search had not sent yet.
        for row in trial.rows:
            self._log(number, row)
        self._since[number] = time.monotonic()

    def add(self, number: int, row: Row) -> None:
        """A trial has finished an epoch."""
        trial = self.trials[number].with_rows([row])
        if trial is self.trials[number]:
            return
        self._write(self._timed(trial))
        say(f"trial {number}: {self.unit} {row.epoch}, dev {row.score:.4f}")
        self._log(number, row)

    def wait(self, number: int, seconds: float) -> None:
        """A trial has no CPUs and GPUs yet.

        Raises:
            TuningError: it has waited too long.
        """
        message = f"trial {number} has waited {seconds:,.0f} s for its CPUs and GPUs; {describe_booked()}"
        if seconds < self.max_wait_s:
            say(message)
            return
        raise TuningError(
            f"{message}. Wait until they are free, end what holds them (ray status; ray list actors), or raise "
            "trials.max_wait_s; the same command goes on with the search"
        )

    def retry(self, number: int, error: str) -> None:
        """A trial died and is tried again."""
        say(f"trial {number} died and is tried again: {error}")

    def end(self, number: int, status: Status, error: str = "") -> None:
        """A trial is over; what it leaves behind is removed unless it is the best so far."""
        # First, since a search that is killed here and goes on looks only after trials that are not over.
        tracker = self._trackers.pop(number, None)
        if tracker is not None:
            tracker.set_tags({"raydr.status": status} | ({"raydr.error": error} if error else {}))
            tracker.end("FAILED" if status == "failed" else "FINISHED")
        trial = self._timed(self.trials[number].changed(status=status, error=error))
        self._write(trial)
        self._record(trial)
        self._forget_ended(but=number)
        self._tell(trial)

    def close(self, interrupted: bool) -> None:
        """The search ends; runs of trials that are not over stay resumable."""
        for tracker in self._trackers.values():
            tracker.end("KILLED" if interrupted else "FINISHED")
        self._trackers.clear()
        self._forget_ended()

    # -- inside

    def _log(self, number: int, row: Row) -> None:
        if number in self._trackers:
            metrics = {f"{self.unit}/{name}": value for name, value in row.metrics.items()}
            self._trackers[number].log_metrics(metrics | {"score": row.score}, row.epoch)

    def _timed(self, trial: Trial) -> Trial:
        now = time.monotonic()
        passed = now - self._since.get(trial.number, now)
        self._since[trial.number] = now
        return trial.changed(seconds=round(trial.seconds + passed, 2))

    def _write(self, trial: Trial) -> None:
        self.trials[trial.number] = trial
        self.making.folder.write_json(_name(trial.number), trial.model_dump(mode="json"))

    def _record(self, trial: Trial) -> None:
        name, folder = _name(trial.number), self.making.folder
        self.making.record(name, Part(rows=len(trial.rows), bytes=folder.size(name), checksum=folder.checksum(name)))

    def _forget_ended(self, but: int | None = None) -> None:
        """Remove what trials that are over have left, but not of the best, nor of one that may be on its way down."""
        best = best_trial(self.trials.values())
        spared = {but, best.number if best is not None else None}
        ended = [one for one in self.trials.values() if one.over and one.number not in spared | self._forgotten]
        kept = [one.values for one in self.trials.values() if not one.over or one.number in spared]
        for trial in ended:
            self._forgotten.add(trial.number)
            self.place(trial.number).remove()
            self.forget(trial.values, kept)

    def _tell(self, trial: Trial) -> None:
        self.bar.advance()
        outcome = {
            "finished": f"finished, dev {trial.score:.4f}" if trial.score is not None else "finished",
            "stopped": f"stopped after {self.unit} {trial.epochs}, dev {trial.score or 0.0:.4f}",
            "failed": f"failed: {trial.error}",
        }[trial.status]
        best = best_trial(self.trials.values())
        over = sum(one.over for one in self.trials.values())
        leader = f"; best so far trial {best.number} with {best.score:.4f}" if best is not None else ""
        say(f"trial {trial.number} {outcome} ({over} of {self.total} over{leader})")


def place_of(search: Folder, number: int) -> Folder:
    """A trial's own folder below the search's."""
    return search / PLACES / f"trial-{number:03d}"


def load_trials(search: Artifact) -> list[Trial]:
    """The trials of a finished search, by number."""
    found = [Trial.model_validate(search.folder.read_json(name)) for name in search.parts("trials")]
    return sorted(found, key=lambda trial: trial.number)


def _name(number: int) -> str:
    return f"trials/trial-{number:03d}.json"


def _last(key: str) -> str:
    return key.rpartition(".")[2]
