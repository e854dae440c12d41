"""What Ray Tune asks on the driver: for the next trial, and whom to tell of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray.tune import Callback
from ray.tune.search import Searcher

from raydr.errors import ConfigError
from raydr.tuning.book import Book
from raydr.tuning.proposals import propose
from raydr.tuning.space import Space
from raydr.tuning.trial import REASON
from raydr.tuning.trial_config import with_values
from raydr.tuning.trials import WAITED, WAITS_FOR, Row, place_of


class TrialSource(Searcher):  # type: ignore[misc]  # Ray is not typed
    """Gives Tune the trials of the book that are not over, then new ones.

    Args:
        space: what is searched.
        book: all trials so far.
        numbers: of the trials to run, in order.
    """

    def __init__(self, space: Space, book: Book, numbers: list[int]) -> None:
        super().__init__(metric="score", mode="max")
        self.space = space
        self.book = book
        self.numbers = list(numbers)

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        """The next trial's number, values and what is known of it already, as Tune's config of it."""
        while self.numbers:
            number = self.numbers.pop(0)
            trial = self.book.trials.get(number)
            if trial is None:
                trial = self.book.begin(number, propose(self.space, number, self.book.listed()))
            self.book.start(number)
            try:
                with_values(self.space.config, trial.values)
            except ConfigError as error:
                self.book.end(number, "failed", str(error))
                continue
            rows = [row.model_dump() for row in trial.rows]
            return {"trial": {"number": number, "values": trial.values, "rows": rows}}
        return str(Searcher.FINISHED)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Nothing to do: proposals are made from the book."""

    def save(self, checkpoint_path: str) -> None:
        """Tune wants a file; the book is what a search goes on from."""
        Path(checkpoint_path).touch()

    def __getstate__(self) -> dict[str, Any]:
        # Tune pickles what it was made of, for a restore that raydr does not use.
        return {}


class Follower(Callback):  # type: ignore[misc]
    """Writes into the book what Tune hears from the trials."""

    def __init__(self, book: Book) -> None:
        self.book = book

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if WAITS_FOR in result:
            self.book.wait(_number(trial), result[WAITS_FOR], result[WAITED])
            return
        self.book.add(_number(trial), Row.model_validate(result["row"]))
        if result["finished"]:
            self.book.end(_number(trial), "finished")

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if not self.book.trials[_number(trial)].over:
            self.book.end(_number(trial), "stopped")

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.book.retry(_number(trial), self._why(trial))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if not self.book.trials[_number(trial)].over:
            self.book.end(_number(trial), "failed", self._why(trial))

    def _why(self, trial: Any) -> str:
        place = place_of(self.book.folder, _number(trial))
        return str(place.read_json(REASON)) if place.exists(REASON) else "its process died"

    def __getstate__(self) -> dict[str, Any]:
        return {}


def _number(trial: Any) -> int:
    return int(trial.config["trial"]["number"])
