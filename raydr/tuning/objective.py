"""What the trials of a search do: one implementation trains, another one runs the rounds of a refresh."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from raydr.config.run import RunConfig
from raydr.store.folder import Folder
from raydr.tuning.trials import Row


@dataclass(frozen=True)
class News:
    """How far a trial is.

    Args:
        rows: all so far.
        finished: the last row is there, and the model.
        waited_s: seconds that it has waited for its CPUs and GPUs; 0 if it does not wait.
    """

    rows: list[Row]
    finished: bool = False
    waited_s: float = 0.0


class Objective(Protocol):
    """Goes to the trials' processes, so it holds settings and no data."""

    @property
    def config(self) -> RunConfig:
        """Of the default trial."""

    def run(self, values: Mapping[str, Any], place: Folder) -> Generator[News, None, None]:
        """Do what one trial does, or go on with it.

        Runs in a process that has no CPU of its own: whatever works asks Ray for what it needs.

        Args:
            values: of the trial, by dotted key.
            place: the trial's folder, where an interrupted attempt has left its state.

        Yields:
            All rows so far, at least after each epoch or round. What works is ended when the iterator is closed.
        """

    def forget(self, ended: Mapping[str, Any], kept: Sequence[Mapping[str, Any]]) -> None:
        """Remove what a trial has left outside its folder and no other trial reads; called where the search runs.

        Args:
            ended: values of the trial.
            kept: values of those that are not over, and of the best so far.
        """
