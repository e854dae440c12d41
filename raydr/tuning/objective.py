"""What the trials of a search do: one implementation trains, another one runs the rounds of a refresh."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from raydr.store.folder import Folder
from raydr.tuning.trials import Row

#: A trial's model below its folder.
MODEL = "model"
#: All rows of a trial so far, and whether it is finished.
RowsSoFar = tuple[list[Row], bool]


class Objective(Protocol):
    """Goes to the trials' processes, so it holds folders, settings and Ray handles, and no data."""

    def run(self, values: Mapping[str, Any], place: Folder, start: Folder | None) -> Iterator[RowsSoFar]:
        """Do what one trial does, or go on with it.

        Runs in a process that has no CPU of its own: whatever works asks Ray for what it needs.

        Args:
            values: of the trial, by dotted key.
            place: the trial's folder, where an interrupted attempt has left its state.
            start: a state to go on from in place of that, for population based training.

        Yields:
            After each epoch, or round, all rows so far, and whether the trial is finished.
        """

    def forget(self, ended: Mapping[str, Any], running: Sequence[Mapping[str, Any]]) -> None:
        """Remove what a trial has left outside its folder and no other trial reads; called where the search runs.

        Args:
            ended: values of the trial.
            running: values of those that are not over.
        """

    def state(self, place: Folder) -> Folder | None:
        """The trial's last state, for another member of a population to go on from; None if there is none yet."""
