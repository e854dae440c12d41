"""A trial's own process: it asks for work, passes on what comes of it, and holds no CPU while it waits."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from raydr.config.run import RunConfig
from raydr.errors import BusyError
from raydr.stages.failures import root_cause
from raydr.stages.lone_worker import Alone
from raydr.stages.train import train
from raydr.store.folder import Folder
from raydr.training.checkpoint import load_progress
from raydr.tuning.book import place_of
from raydr.tuning.objective import Objective, RowsSoFar
from raydr.tuning.trials import Row, rows_of

if TYPE_CHECKING:
    from raydr.training.checkpoint import Progress

#: Why a trial died, in its folder, if it could say so.
REASON = "died.json"
#: Seconds between two looks at a training that reports nothing, and until the process of an ended attempt is gone.
_LOOK_S, _GONE_S = 0.5, 120.0


def run_trial(config: Mapping[str, Any], objective: Objective, search: Folder) -> None:
    """What Ray Tune runs for a trial.

    Args:
        config: ``number`` and ``values`` of the trial, and the ``rows`` that an earlier, interrupted search has left:
            they are reported again, so that the scheduler sees what it saw then.
        objective: what to do.
        search: the folder of the search.
    """
    from ray import tune

    place = place_of(search, config["number"])
    reported = 0

    def report(rows: list[Row], finished: bool, again: bool = False) -> None:
        nonlocal reported
        for row in rows:
            last = finished and row is rows[-1]
            # An interrupted search may have written the last row and not that it was the last.
            if row.epoch > reported or last:
                reported = row.epoch
                state = objective.state(place)
                tune.report(
                    {"epoch": row.epoch, "score": row.score, "finished": last, "again": again, "row": row.model_dump()},
                    checkpoint=tune.Checkpoint.from_directory(state.root) if state is not None else None,
                )

    start = None
    if (taken_up := tune.get_checkpoint()) is not None:
        start = Folder(taken_up.path)
        reported = load_progress(Path(taken_up.path)).epoch
    else:
        report([Row.model_validate(row) for row in config["rows"]], finished=False, again=True)
    place.remove(REASON)
    try:
        for rows, finished in objective.run(config["values"], place, start):
            report(rows, finished)
    except Exception as error:
        # Tune passes errors on as pickles; the book reads this.
        place.write_json(REASON, root_cause(error))
        raise


class _Histories(Protocol):
    """A queue, in this process or as a Ray actor."""

    def put(self, item: Any) -> None: ...

    def get(self, block: bool = ..., timeout: float | None = ...) -> Any: ...


@dataclass(frozen=True)
class HistoryWatcher:
    """Passes on the history of a training after each epoch, but not the last: that is over when the model is saved."""

    histories: _Histories

    def tell(self, message: str) -> None:
        """Nobody reads the lines of single trials."""

    def step(self, progress: Progress, num_steps: int) -> None:
        """Only epochs count."""

    def epoch(self, progress: Progress) -> None:
        from ray.exceptions import RayActorError

        if progress.finished:
            return
        try:
            self.histories.put([row.model_dump() for row in progress.history])
        except RayActorError:
            # The trial was stopped: the queue went first, and this group is about to go. An error here would make Ray
            # Train start the group again at the very moment when it is taken down, and nobody would free its CPUs.
            return


def training_rows(
    config: RunConfig, dataset: Folder, corpus: Folder, negatives: Folder | None, output: Folder, alone: Alone | None
) -> Iterator[RowsSoFar]:
    """Train, and tell the rows so far after every epoch; a Ray task that streams.

    Args:
        config: of the trial.
        dataset: what is trained on.
        corpus: its corpus.
        negatives: candidates of the training split.
        output: where the model goes; an interrupted training goes on from the state beside it.
        alone: train in this very process; with a group of Ray Train workers if None.

    Yields:
        All rows so far, and whether the training is finished and its model saved.
    """
    histories, empty = _queue(alone is not None)

    def work() -> list[dict[str, Any]]:
        deadline = time.monotonic() + _GONE_S
        while True:
            try:
                made = train(
                    config,
                    dataset,
                    corpus,
                    output,
                    negatives,
                    # What the trial came to before it took up another one's state is given up.
                    overwrite=alone is not None and alone.start is not None,
                    alone=alone,
                    watcher=HistoryWatcher(histories),
                )
            except BusyError:
                # Tune has ended the attempt before this one, but its process may take a moment to go.
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_S)
                continue
            history: list[dict[str, Any]] = made.info["history"]
            return history

    def rows(history: list[dict[str, Any]]) -> list[Row]:
        return rows_of(history, config.train.dev.measure, config.train.keep)

    with ThreadPoolExecutor(max_workers=1) as pool:
        running = pool.submit(work)
        while not running.done():
            try:
                yield rows(histories.get(timeout=_LOOK_S)), False
            except empty:
                continue
        yield rows(running.result()), True


# One place, so that a training does not run far ahead of Tune, which may want to stop it.
def _queue(alone: bool) -> tuple[_Histories, type[Exception]]:
    if alone:
        return queue.Queue(maxsize=1), queue.Empty
    from ray.util import queue as ray_queue

    return ray_queue.Queue(maxsize=1, actor_options={"num_cpus": 0}), ray_queue.Empty


def streamed(
    task: Callable[..., Iterator[RowsSoFar]], num_cpus: float, num_gpus: float
) -> Callable[..., Iterator[RowsSoFar]]:
    """A generator as a Ray task outside the trial's placement group, never tried again: Tune counts the tries.

    It goes on only when the caller asks for what comes next: what Tune stops after some rows has begun nothing more.
    """
    import ray

    def gated(*arguments: Any) -> Iterator[RowsSoFar | None]:
        for rows in task(*arguments):
            yield rows
            # Ray lets a generator go on as soon as somebody begins to read; this is read only afterwards.
            yield None

    remote: Any = ray.remote(
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        max_retries=0,
        # The process ends with its training: what it held of memory and GPU is free for the next trial.
        max_calls=1,
        scheduling_strategy="DEFAULT",
        num_returns="streaming",
        _generator_backpressure_num_objects=1,
    )(gated)

    def call(*arguments: Any) -> Iterator[RowsSoFar]:
        for reference in remote.remote(*arguments):
            if (rows := ray.get(reference)) is not None:
                yield rows

    return call
