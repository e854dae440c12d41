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

import logging
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray import tune

from raydr.data.schema import write_parquet
from raydr.errors import TuningError
from raydr.runtime.console import progress_bar, say
from raydr.runtime.tracking import Tracker
from raydr.store.artifact import Building
from raydr.tuning.book import Book
from raydr.tuning.objective import Objective
from raydr.tuning.parameters import as_text
from raydr.tuning.plan import TunePlan
from raydr.tuning.scheduler import make_scheduler
from raydr.tuning.source import Follower, TrialSource
from raydr.tuning.training import InputMaker
from raydr.tuning.trial import TrialProcess
from raydr.tuning.trial_config import with_values
from raydr.tuning.trials import PLACES, Trial, as_table, best_trial

BEST, TRIALS, TABLE = "best.yaml", "trials.json", "trials.parquet"
#: Where Ray Tune keeps its own files while it runs.
_TUNE_FILES = "ray-tune"
#: Ray's name of a resource that the head alone has.
HEAD = "node:__internal_head__"
#: What Ray books for a trial's own process: memory, and a place on the head, which no cloud takes back and which has no
#: GPU that would be kept from going home. Its work books CPUs and GPUs for itself.
TRIAL_SHELL = {"memory": 256 * 2**20, HEAD: 0.001}
#: Without Tune's own loggers and reporters: the book says what happens. A word of waiting has no score.
_TUNE_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
}


def search(making: Building, tracker: Tracker, plan: TunePlan, name: str, objective: Objective) -> dict[str, Any]:
    """Run the trials that are not over, and put what they came to into the artefact.

    Args:
        making: the ``study``.
        tracker: its MLflow run; each trial is nested in it.
        plan: the space and how it is searched.
        name: of the search.
        objective: what a trial does.

    Raises:
        TuningError: no trial was trained to its end, or one has waited too long for its resources.
        KeyboardInterrupt: Ctrl-C; the same command goes on.
    """
    with progress_bar(f"tune {name}", plan.total, "trials") as bar:
        book = Book(making.folder, tracker, plan, objective, bar)
        try:
            _run(plan, name, objective, book)
        finally:
            book.close()
    trials = book.listed()
    best = best_trial(trials)
    if best is None:
        reason = next((trial.error for trial in trials if trial.error), "nothing was told")
        raise TuningError(
            f"none of the {len(trials)} trials was trained to its end; the first reason: {reason}. Correct the config "
            "or the space and search anew"
        )
    for trial in trials:
        objective.forget(trial.values, [best.values], search_is_over=True)
    _write(making, trials, best_config(plan, name, best, trials[0]))
    return {
        "name": name,
        "trials": len(trials),
        **Counter(trial.status for trial in trials),
        "best": best.number,
        "best_score": best.score,
        "default_score": trials[0].score,
        "facts": plan.facts(objective.shares),
    }


def _run(plan: TunePlan, name: str, objective: Objective, book: Book) -> None:
    waiting, trials = book.waiting(), plan.space.settings.trials
    if len(waiting) < plan.total:
        say(f"going on: {plan.total - len(waiting)} of {plan.total} trials are over")
    if not waiting:
        return
    files = book.folder / _TUNE_FILES
    files.remove()
    inputs = ray.remote(num_cpus=0, resources={HEAD: 0.001})(InputMaker).remote()
    process = tune.with_parameters(TrialProcess, objective=replace(objective, inputs=inputs), search=book.folder)
    over = [trial for trial in book.listed() if trial.over]
    os.environ |= _TUNE_SETTINGS
    for logger in ("ray.tune", "ray.air"):
        # Nor stack traces of trials that fail.
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    tune.Tuner(
        tune.with_resources(process, tune.PlacementGroupFactory([TRIAL_SHELL])),
        tune_config=tune.TuneConfig(
            search_alg=TrialSource(plan.space, book, waiting),
            scheduler=make_scheduler(plan.space.settings.scheduler, plan.schedule, over),
            num_samples=len(waiting),
            max_concurrent_trials=objective.shares.concurrency,
            trial_dirname_creator=lambda trial: str(trial.trial_id),
        ),
        run_config=tune.RunConfig(
            name=name,
            storage_path=files.root if files.is_local else files.url,
            failure_config=tune.FailureConfig(max_failures=trials.max_failures),
            # What works keeps its own state.
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            callbacks=[Follower(book)],
            verbose=0,
        ),
    ).fit()
    if book.waiting():
        # Tune takes Ctrl-C as a wish to end early and returns.
        raise KeyboardInterrupt
    files.remove()


def _write(making: Building, trials: list[Trial], best: str) -> None:
    (making.folder / PLACES).remove()
    with making.folder.publish(TABLE) as path:
        write_parquet(as_table(trials), path)
    making.folder.write_json(TRIALS, [trial.model_dump(mode="json") for trial in trials])
    with making.folder.publish(BEST) as path:
        Path(path).write_text(best, encoding="utf-8")
    making.record_files()


def best_config(plan: TunePlan, name: str, best: Trial, default: Trial) -> str:
    """The best trial's config as a YAML file that says where it comes from."""
    config = with_values(plan.space.config, best.values)
    against = f"; the default came to {default.score:.4f}" if default.score is not None else ""
    lines = [
        f"Trial {best.number} of the search {name}: dev {plan.measure} {best.score or 0.0:.4f}{against}.",
        *(f"  {key}: {as_text(value)}" for key, value in best.values.items()),
        *(["Its rounds: raydr refresh with this file."] if plan.refreshes else []),
    ]
    return "".join(f"# {line}\n" for line in lines) + config.to_yaml()
