"""A trial's own process: it asks for work, passes on what comes of it, and holds no CPU while it waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from ray.tune import Trainable

from raydr.config.run import RunConfig
from raydr.stages.failures import root_cause, worker_errors
from raydr.stages.pool import ThisProcess
from raydr.stages.ray_pool import RayPool
from raydr.store.folder import Folder
from raydr.tuning.book import place_of
from raydr.tuning.objective import News, Objective
from raydr.tuning.resources import Split
from raydr.tuning.trial_nodes import make, trained
from raydr.tuning.trials import WAITED, Row, rows_of

if TYPE_CHECKING:
    from raydr.training.checkpoint import Progress

#: Files in a trial's folder: why it died, if it could say so; and the history of its training, there when that begins.
REASON, HISTORY = "died.json", "history.json"
#: Seconds between two looks at a training, and between two words about waiting.
_LOOK_S, _WORD_S = 0.5, 60.0
#: Seconds until work that was ended, or its process, is gone.
_GONE_S = 120.0


class TrialProcess(Trainable):  # type: ignore[misc]  # Ray is not typed
    """What Ray Tune runs for a trial: each of its steps is an epoch (or round), or the word that the trial waits."""

    def setup(self, config: dict[str, Any], objective: Objective, search: Folder) -> None:
        """Begin.

        Args:
            config: under ``trial`` its ``number`` and ``values``, and the ``rows`` that an interrupted search has left:
                they are told again, so that the scheduler sees what it saw then.
            objective: what to do.
            search: the folder of the search.
        """
        trial = config["trial"]
        self.results = _results(trial, objective, place_of(search, trial["number"]))

    def step(self) -> dict[str, Any]:
        return next(self.results)

    def cleanup(self) -> None:
        """End what works for the trial. Tune waits for that before this process goes."""
        self.results.close()


def _results(trial: dict[str, Any], objective: Objective, place: Folder) -> Generator[dict[str, Any], None, None]:
    place.remove(REASON)
    reported = 0
    before = News([Row.model_validate(row) for row in trial["rows"]])
    try:
        with closing(objective.run(trial["values"], place)) as work:
            for news in chain([before], work):
                if news.waited_s:
                    yield {"epoch": reported, "score": 0.0, WAITED: news.waited_s}
                for row in news.rows:
                    done = news.finished and row is news.rows[-1]
                    # An interrupted search may have written the last row and not that it was the last.
                    if row.epoch > reported or done:
                        reported = row.epoch
                        # Tune says of a trial that a scheduler stops that it is done, too.
                        result = {"epoch": row.epoch, "score": row.score, "row": row.model_dump(), "finished": done}
                        yield result | {"done": done}
    except Exception as error:
        # Tune passes errors on as pickles; the book reads this.
        place.write_json(REASON, root_cause(error))
        raise


@contextmanager
def outside(task: Callable[..., Any], *arguments: Any, num_cpus: float = 0, num_gpus: float = 0) -> Iterator[Any]:
    """A Ray task outside the trial's placement group, never tried again: Tune counts the tries.

    When the block ends before the task, the task is interrupted, as by Ctrl-C, and waited for. That is how Ray Train
    takes its workers down and gives back what they hold: if its caller is killed, it leaves that to an actor that asks
    the dashboard.
    """
    import ray

    options = {
        "num_cpus": num_cpus,
        "num_gpus": num_gpus,
        "max_retries": 0,
        # The process ends with its work: what it held of memory and GPU is free for the next trial.
        "max_calls": 1,
        "scheduling_strategy": "DEFAULT",
        # Without it that actor finds no dashboard where several Rays run on one machine, and dies of it.
        "runtime_env": {"env_vars": {"RAY_API_SERVER_ADDRESS": ray.get_runtime_context().gcs_address}},
    }
    reference = ray.remote(**options)(task).remote(*arguments)
    try:
        yield reference
    finally:
        # Not what the task has called as well: Ray Train's controller is asked to stop, and must not be broken off.
        ray.cancel(reference, recursive=False)
        ray.wait([reference], timeout=_GONE_S)


@dataclass(frozen=True)
class HistoryWatcher:
    """Writes the history of a training after each epoch, but not the last: that is over when the model is saved.

    Args:
        place: of the trial.
    """

    place: Folder

    def tell(self, message: str) -> None:
        """Nobody reads the lines of single trials; the first says that the training has begun."""
        if not self.place.exists(HISTORY):
            self.place.write_json(HISTORY, [])

    def step(self, progress: Progress, num_steps: int) -> None:
        """Only epochs count."""

    def epoch(self, progress: Progress) -> None:
        if not progress.finished:
            self.place.write_json(HISTORY, [row.model_dump() for row in progress.history])


def follow_training(config: RunConfig, place: Folder, split: Split) -> Generator[News, None, None]:
    """Train, and tell the rows so far again and again.

    Args:
        config: of the trial; what its training reads is there.
        place: the trial's.
        split: of the resources: whether a single process trains, or a group of Ray Train workers that book their own.
    """
    import ray

    def rows(history: list[dict[str, Any]]) -> list[Row]:
        return rows_of(history, config.train.dev.measure, config.train.keep)

    # Else it would seem that the training has begun.
    place.remove(HISTORY)
    needs = {"num_cpus": split.cpus, "num_gpus": split.gpus} if split.alone else {}
    with outside(_train, config, place, split.alone, **needs) as training:
        since = told = time.monotonic()
        while not ray.wait([training], timeout=_LOOK_S)[0]:
            if place.exists(HISTORY):
                yield News(rows(place.read_json(HISTORY)))
            elif time.monotonic() > told + _WORD_S:
                told = time.monotonic()
                yield News([], waited_s=told - since)
        with worker_errors():
            history = ray.get(training)
        yield News(rows(history), finished=True)


def _train(config: RunConfig, place: Folder, alone: bool) -> list[dict[str, Any]]:
    """Train in the main thread, where Ray Train can be interrupted; returns the whole history."""
    node = trained(config, HistoryWatcher(place))
    inventory = make(config, [node], ThisProcess() if alone else RayPool())
    history: list[dict[str, Any]] = inventory.open(node).info["history"]
    return history
