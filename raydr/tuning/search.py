"""A search with Ray Tune: trials are proposed, run side by side, stopped early, and written into a book.

Artefact ``study``::

    trials/trial-NNN.json    values, status and the rows of every epoch, one file a trial
    trials.json              all of them
    trials.parquet           the same as a table, one row a trial and epoch
    best.yaml                the best trial's config, ready to run

Beside them, while it is not over, ``places/`` holds how far running trials are. What trials make, and share, lies under
the keys of the graph. Ray Tune runs and schedules; what a killed search goes on from is the book alone.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from raydr.data.schema import write_parquet
from raydr.errors import TuningError
from raydr.runtime.console import progress_bar, say
from raydr.runtime.tracking import Tracker
from raydr.store.artifact import Building
from raydr.store.folder import write_part
from raydr.tuning.book import Book
from raydr.tuning.distributions import as_text
from raydr.tuning.objective import Objective
from raydr.tuning.schedule import Schedule
from raydr.tuning.space import Space
from raydr.tuning.trial_config import with_values
from raydr.tuning.trials import Trial, as_table, best_trial

BEST, TRIALS, TABLE = "best.yaml", "trials.json", "trials.parquet"
#: Where Ray Tune keeps its own files while it runs.
_TUNE_FILES = "ray-tune"
#: Memory that Ray books for a trial's own process; its work books CPUs and GPUs for itself.
_TRIAL_MEMORY = 256 * 2**20


@dataclass(frozen=True)
class Search:
    """What is to be done.

    Args:
        name: of the search.
        space: what is searched.
        schedule: when trials are stopped.
        concurrency: how many run at a time.
        total: trials, the default among them.
        facts: how it is searched, in sentences.
        measure: on the dev split, that trials are compared by.
    """

    name: str
    space: Space
    schedule: Schedule
    concurrency: int
    total: int
    facts: Sequence[str]
    measure: str


def search(making: Building, tracker: Tracker, plan: Search, objective: Objective) -> dict[str, Any]:
    """Run the trials that are not over, and put what they came to into the artefact.

    Args:
        making: the ``study``.
        tracker: its MLflow run; each trial is nested in it.
        plan: the space and how it is searched.
        objective: what a trial does.

    Raises:
        TuningError: no trial was trained to its end.
        KeyboardInterrupt: Ctrl-C; the same command goes on.
    """
    with progress_bar(f"tune {plan.name}", plan.total, "trials") as bar:
        max_wait_s = plan.space.settings.trials.max_wait_s
        book = Book(making, tracker, plan.total, bar, plan.schedule.unit, objective.forget, max_wait_s)
        interrupted = True
        try:
            _run(plan, objective, book)
            interrupted = False
        finally:
            book.close(interrupted)
    trials = book.listed()
    best = best_trial(trials)
    if best is None:
        reasons = sorted({trial.error for trial in trials if trial.error})
        raise TuningError(
            f"none of the {len(trials)} trials was trained to its end"
            + (f"; the first reason: {reasons[0]}" if reasons else "")
            + ". Correct the config or the space and search anew"
        )
    return _finish(plan, making, trials, best)


def _run(plan: Search, objective: Objective, book: Book) -> None:
    from ray import tune

    from raydr.tuning.scheduler import make_scheduler
    from raydr.tuning.source import Follower, TrialSource
    from raydr.tuning.trial import TrialProcess

    waiting = [number for number in range(plan.total) if number not in book.trials or not book.trials[number].over]
    if len(waiting) < plan.total:
        say(f"going on: {plan.total - len(waiting)} of {plan.total} trials are over")
    if not waiting:
        return
    folder = book.making.folder
    files = folder / _TUNE_FILES
    files.remove()
    over = [trial for trial in book.listed() if trial.over]
    process = tune.PlacementGroupFactory([{"memory": _TRIAL_MEMORY}])
    source = TrialSource(plan.space, book, waiting)
    with _quiet_tune():
        tune.Tuner(
            tune.with_resources(tune.with_parameters(TrialProcess, objective=objective, search=folder), process),
            tune_config=tune.TuneConfig(
                search_alg=source,
                scheduler=make_scheduler(plan.space, plan.schedule, over),
                num_samples=len(waiting),
                max_concurrent_trials=plan.concurrency,
                trial_dirname_creator=lambda trial: str(trial.trial_id),
            ),
            run_config=tune.RunConfig(
                name=plan.name,
                storage_path=files.root if files.is_local else files.url,
                failure_config=tune.FailureConfig(max_failures=plan.space.settings.trials.max_failures),
                # What works keeps its own state.
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                callbacks=[Follower(book)],
                verbose=0,
            ),
        ).fit()
    unfinished = [number for number in waiting if number not in book.trials or not book.trials[number].over]
    if unfinished:
        # Tune takes Ctrl-C as a wish to end early and returns.
        raise KeyboardInterrupt
    files.remove()


@contextmanager
def _quiet_tune() -> Iterator[None]:
    """Without Tune's own loggers, reporters and stack traces: the book says what happens."""
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    loggers = [logging.getLogger(name) for name in ("ray.tune", "ray.air")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _finish(plan: Search, making: Building, trials: list[Trial], best: Trial) -> dict[str, Any]:
    folder = making.folder
    table = as_table(trials)
    making.record(TABLE, write_part(folder, TABLE, table.num_rows, lambda path: write_parquet(table, path)))
    listed = json.dumps([trial.model_dump(mode="json") for trial in trials], indent=1)
    for name, text in ((TRIALS, listed + "\n"), (BEST, best_config(plan, best, trials[0]))):
        making.record(name, write_part(folder, name, 0, partial(_write_text, text)))
    counts: dict[str, Any] = dict.fromkeys(("finished", "stopped", "failed"), 0)
    for trial in trials:
        counts[trial.status] += 1
    default = trials[0]
    return {
        "name": plan.name,
        "trials": len(trials),
        **counts,
        "best": best.number,
        "best_score": best.score,
        "default_score": default.score,
        "facts": list(plan.facts),
    }


def best_config(plan: Search, best: Trial, default: Trial) -> str:
    """The best trial's config as a YAML file that says where it comes from."""
    config = with_values(plan.space.config, best.values)
    score = f"dev {plan.measure} {best.score or 0.0:.4f}"
    against = f"; the default came to {default.score:.4f}" if default.score is not None else ""
    lines = [
        f"Trial {best.number} of the search {plan.name}: {score}{against}.",
        *(f"  {key}: {as_text(value)}" for key, value in best.values.items()),
    ]
    if plan.space.settings.objective == "refresh":
        lines.append("Its rounds: raydr refresh with this file.")
    return "".join(f"# {line}\n" for line in lines) + config.to_yaml()


def _write_text(text: str, path: str) -> None:
    Path(path).write_text(text, encoding="utf-8")
