"""Searching over settings: the data and what trials share are made, then the trials run, then the best is confirmed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from raydr.data.dataset import Dataset
from raydr.errors import ConfigError
from raydr.graph.job import Job, log_made
from raydr.runtime.console import say, show_table
from raydr.runtime.tracking import Tracker
from raydr.stages.worker_group import training_dtype
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder
from raydr.tuning.confirm import BEST, DEFAULT
from raydr.tuning.outcome import report, search_result, show_result
from raydr.tuning.plan import TunePlan, shares_for, show_plan, split_for
from raydr.tuning.refresh import refresh_task
from raydr.tuning.report import Confirmation, confirmation_rows
from raydr.tuning.resources import Shares
from raydr.tuning.result import SearchResult
from raydr.tuning.search import Search, search
from raydr.tuning.task import Task
from raydr.tuning.training import training_task
from raydr.tuning.trial_config import with_values

#: What a confirmation makes, below the search.
CONFIRM = "confirm"


@dataclass(frozen=True)
class TuneOutcome:
    """What ``raydr tune`` came to.

    Args:
        search: the artefact: its trials, and the best config.
        result: the trials and what mattered.
        confirmations: the best against the default, by split; empty if that was not asked for.
    """

    search: Artifact
    result: SearchResult
    confirmations: list[Confirmation]


def run_tune(job: Job, plan: TunePlan, name: str) -> TuneOutcome:
    """Run a search, or go on with it; then report it, and confirm its best if the space asks for that.

    Args:
        job: the run.
        plan: what is searched.
        name: of the search in the working folder.

    Raises:
        ConfigError: a trial does not fit into Ray's resources, or the data have no dev split.
        TuningError: no trial was trained to its end.
    """

    space = plan.space
    resources = shares_for(plan, job.config) if plan.refreshes else split_for(plan, job.config)
    show_plan(plan, resources)
    # The data are what trials start from: only the search is done anew.
    data = replace(job, config=space.config, overwrite=False)
    data.prepare()
    if space.config.inject_noise is not None:
        data.inject_noise()
    _check_splits(data, confirms=space.settings.confirm.num_seeds > 0)
    output = job.workspace.root / "tune" / name
    dtype, reason = training_dtype(space.config.train, space.config.train.dtype)
    say(f"trials train in {dtype}: {reason}")
    if isinstance(resources, Shares):
        task = refresh_task(data, plan, resources, output, dtype)
    else:
        task = training_task(data, plan, resources, output, dtype)
    work = Search(
        name, space, plan.schedule, resources.concurrency, plan.total, plan.facts(resources), task.identity,
        plan.measure, plan.judged,
    )  # fmt: skip
    with job.tracker.stage(f"tune-{name}", {"raydr.search": task.identity.fingerprint}) as tracker:
        tracker.log_params(space.settings.model_dump(mode="json"))
        made = search(work, task.objective, output, tracker, job.replaces(output))
        task.close()
        log_made(tracker, made)
        result = search_result(plan, made)
        show_result(result)
        confirmations = _confirm(plan, result, task, output / CONFIRM, tracker)
        report(result, confirmations, made, tracker)
    return TuneOutcome(made, result, confirmations)


def _confirm(plan: TunePlan, result: SearchResult, task: Task, root: Folder, tracker: Tracker) -> list[Confirmation]:
    """The best config and the default trained anew, if the space asks for it and the two differ."""
    space, num_seeds = plan.space, plan.space.settings.confirm.num_seeds
    if not num_seeds:
        return []
    if result.best.number == 0:
        say("the best trial is the default itself: there is no gain to confirm")
        return []
    configs = {DEFAULT: space.config, BEST: with_values(space.config, result.best.values)}
    confirming = task.confirming(configs, [space.config.seed + 1 + at for at in range(num_seeds)], root, tracker)
    found = confirming.run()
    for one in found:
        columns, rows = confirmation_rows(one, by_seed=False)
        title = f"{one.split}: trained anew with {num_seeds} seeds, means over queries and seeds"
        show_table(title, columns, rows)
    return found


def _check_splits(job: Job, confirms: bool) -> None:
    data, split = Dataset.open(job.dataset), job.config.data.dev_split
    if split not in data.splits:
        raise ConfigError(
            f"trials are compared on the dev split {split!r}, which the data set at {job.dataset} has not; it has "
            f"{', '.join(data.splits)}: set data.dev_split"
        )
    missing = [one for one in job.config.data.test_splits if one not in data.splits]
    if confirms and missing:
        raise ConfigError(
            f"confirm.num_seeds is set, and the data set at {job.dataset} has no split {missing[0]!r} to evaluate on; "
            f"it has {', '.join(data.splits)}: set data.test_splits"
        )
