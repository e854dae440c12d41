"""A trial's own process: it asks for work, passes on what comes of it, and holds no CPU while it waits."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import ray
from ray.tune import Trainable

from raydr.stages.failures import root_cause, worker_errors
from raydr.store.folder import Folder
from raydr.tuning.trials import WAITED, Row, place_of

if TYPE_CHECKING:
    from raydr.tuning.objective import Objective

#: Why a trial died, in its folder, if it could say so.
REASON = "died.json"
#: Seconds until work that was ended is gone.
_GONE_S = 120.0


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
                    # No scheduler looks at what has no score.
                    yield {WAITED: news.waited_s}
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


def result_of(work: Any) -> Any:
    """What a task outside has returned; a raydr error that it raised comes out as itself."""
    with worker_errors():
        return ray.get(work)
