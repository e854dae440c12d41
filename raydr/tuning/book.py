"""The book of a search: what every trial has come to, on disk, in MLflow and on the console.

Kept by the driver. Each trial is a file that is written anew after every epoch; a search that was killed goes on from
these files.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raydr.errors import TuningError
from raydr.runtime.console import ProgressBar, say
from raydr.runtime.tracking import Tracker
from raydr.store.folder import Folder
from raydr.tuning.objective import Objective
from raydr.tuning.parameters import as_text
from raydr.tuning.plan import TunePlan
from raydr.tuning.resources import describe_booked
from raydr.tuning.trial_work import RESOURCES
from raydr.tuning.trials import Row, Status, Trial, best_trial, place_of

#: Folder of the trials' files.
TRIALS = "trials"


@dataclass
class Book:
    """All trials of a search.

    Args:
        folder: of the search.
        tracker: its MLflow run; each trial is nested in it.
        plan: what is searched.
        objective: removes what trials have left.
        bar: progress in trials.
    """

    folder: Folder
    tracker: Tracker
    plan: TunePlan
    objective: Objective
    bar: ProgressBar

    def __post_init__(self) -> None:
        self.unit = self.plan.schedule.unit
        found = [Trial.model_validate(self.folder.read_json(name)) for name in self.folder.files(TRIALS)]
        self.trials = {trial.number: trial for trial in found}
        self._trackers: dict[int, Tracker] = {}
        self._forgotten: set[int] = set()
        #: When the running trials began or finished their last epoch.
        self._since: dict[int, float] = {}
        self.bar.advance(sum(trial.over for trial in found))

    def listed(self) -> list[Trial]:
        """All trials by number."""
        return [self.trials[number] for number in sorted(self.trials)]

    def waiting(self) -> list[int]:
        """Numbers of the trials that are not over."""
        return [at for at in range(self.plan.total) if at not in self.trials or not self.trials[at].over]

    def begin(self, number: int, values: Mapping[str, Any]) -> Trial:
        """A trial is proposed."""
        self._write(Trial(number=number, values=dict(values)))
        return self.trials[number]

    def start(self, number: int) -> None:
        """A trial starts, or goes on after the search was interrupted."""
        trial = self.trials[number]
        settings = ", ".join(f"{key.rpartition('.')[2]} {as_text(value)}" for key, value in trial.values.items())
        default = " (the default)" if number == 0 else ""
        gone_on = f"; goes on after {self.unit} {trial.epochs}" if trial.rows else ""
        say(f"trial {number}{default}: {settings}{gone_on}")
        tracker = self.tracker.child(f"trial-{number:03d}", {"raydr.trial": str(number)})
        tracker.log_params(trial.values)
        self._trackers[number] = tracker
        # What an interrupted search had not sent yet.
        for row in trial.rows:
            self._log(number, row)
        self._since[number] = time.monotonic()

    def add(self, number: int, row: Row) -> None:
        """A trial has finished an epoch; one that is there already is left out."""
        trial = self.trials[number]
        if row.epoch <= trial.epochs:
            return
        self._write(self._timed(trial).model_copy(update={"rows": [*trial.rows, row]}))
        say(f"trial {number}: {self.unit} {row.epoch}, dev {row.score:.4f}")
        self._log(number, row)

    def wait(self, number: int, what: str, seconds: float) -> None:
        """A trial cannot go on yet.

        Args:
            number: of the trial.
            what: it waits for.
            seconds: that it has waited.

        Raises:
            TuningError: it has waited too long for its CPUs and GPUs.
        """
        message = f"trial {number} has waited {seconds:,.0f} s for {what}"
        if what == RESOURCES:
            message = f"{message}; {describe_booked()}"
        if what != RESOURCES or seconds < self.plan.space.settings.trials.max_wait_s:
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
        if (tracker := self._trackers.pop(number, None)) is not None:
            tracker.set_tags({"raydr.status": status} | ({"raydr.error": error} if error else {}))
            tracker.end("FAILED" if status == "failed" else "FINISHED")
        trial = self._timed(self.trials[number]).model_copy(update={"status": status, "error": error})
        self._write(trial)
        self._forget(but=number)
        self.bar.advance()
        best = best_trial(self.trials.values())
        score = f", dev {trial.score:.4f}" if trial.score is not None else ""
        outcome = {"stopped": f"stopped after {self.unit} {trial.epochs}{score}", "failed": f"failed: {error}"}
        leader = f"; best so far trial {best.number} with {best.score:.4f}" if best is not None else ""
        over = self.plan.total - len(self.waiting())
        say(f"trial {number} {outcome.get(status, status + score)} ({over} of {self.plan.total} over{leader})")

    def close(self) -> None:
        """The search ends; runs of trials that are not over stay resumable."""
        for tracker in self._trackers.values():
            tracker.end("KILLED")
        self._trackers.clear()
        self._forget()

    def _log(self, number: int, row: Row) -> None:
        if number in self._trackers:
            metrics = {f"{self.unit}/{name}": value for name, value in row.metrics.items()}
            self._trackers[number].log_metrics(metrics | {"score": row.score}, row.epoch)

    def _timed(self, trial: Trial) -> Trial:
        now = time.monotonic()
        passed = now - self._since.get(trial.number, now)
        self._since[trial.number] = now
        return trial.model_copy(update={"seconds": round(trial.seconds + passed, 2)})

    def _write(self, trial: Trial) -> None:
        self.trials[trial.number] = trial
        self.folder.write_json(f"{TRIALS}/trial-{trial.number:03d}.json", trial.model_dump(mode="json"))

    def _forget(self, but: int | None = None) -> None:
        """Remove what trials that are over have left, but not of the best, nor of one that may be on its way down."""
        best = best_trial(self.trials.values())
        spared = {but, best.number if best is not None else None}
        ended = [one for one in self.trials.values() if one.over and one.number not in spared | self._forgotten]
        kept = [one.values for one in self.trials.values() if not one.over or one.number in spared]
        for trial in ended:
            self._forgotten.add(trial.number)
            place_of(self.folder, trial.number).remove()
            self.objective.forget(trial.values, kept)
