"""What the trials of a search do: one implementation trains; a search over refresh rounds would be another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from raydr.storage import Folder
from raydr.tuning.trials import Row

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
            After each epoch all rows so far, and whether the trial is finished.
        """

    def state(self, place: Folder) -> Folder | None:
        """The trial's last state, for another member of a population to go on from; None if there is none yet."""
