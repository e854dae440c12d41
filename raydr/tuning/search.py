"""A search with Ray Tune: Optuna proposes trials, a scheduler stops the bad ones, and a killed search is restored.

Artefact ``study``::

    trials.json    values, status and the rows of every epoch of all trials
    best.yaml      the best trial's config, ready to run

While it is not over, what Ray Tune restores it from and how far running trials are lie beside it. What trials make lies
under the keys of the graph.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import optuna
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from ray import tune
from ray.tune import Callback
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search.optuna import OptunaSearch

from raydr.artefacts.declaration import artefact
from raydr.console import ProgressBar, progress_bar, say
from raydr.errors import TuningError
from raydr.seeding import stable_hash64
from raydr.store import Artifact, Building, Folder
from raydr.tracking.tracker import Tracker
from raydr.training.checkpoint import checkpoint_folder
from raydr.tuning.plan import TunePlan
from raydr.tuning.report import Row, Trial, best_trial
from raydr.tuning.settings import Parameter, as_text
from raydr.tuning.space import with_values
from raydr.tuning.trial import Objective, TrialProcess

BEST, TRIALS = "best.yaml", "trials.json"
#: Rows of a search: so many that it is made on Ray, which Ray Tune needs.
_MANY = 10**9
#: What Ray books for a trial's own process: memory, and a place on the head, which no cloud takes back and which has no
#: GPU that would be kept from going home. Its work books CPUs and GPUs for itself.
TRIAL_SHELL = {"memory": 256 * 2**20, "node:__internal_head__": 0.001}
#: Without Tune's own loggers and reporters: :class:`Reporter` says what happens. A trial that has failed has no score.
_TUNE_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    # Ctrl-C is a kill from which the same command goes on.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
}


@artefact("study", rows=lambda of: _MANY, content=lambda of: of.content)
def search(
    making: Building,
    tracker: Tracker,
    corpus: Artifact,
    dataset: Artifact,
    *,
    content: Mapping[str, Any],
    plan: TunePlan,
    objective: Objective,
    concurrency: int,
) -> dict[str, Any]:
    """Run the trials that are not over, and put their results into the artefact.

    Args:
        making: the ``study``.
        tracker: its MLflow run; each trial is nested in it.
        corpus, dataset: the data, which the trials read by themselves.
        content: what the result depends on.
        plan: the space and how it is searched.
        objective: what a trial does.
        concurrency: trials at a time.

    Raises:
        TuningError: no trial was trained to its end.
        KeyboardInterrupt: Ctrl-C; the same command goes on.
    """
    tracker.log_params(plan.space.settings.model_dump(mode="json"))
    states = checkpoint_folder(making.folder)
    making.scratch.append(states)
    with progress_bar(f"tune {plan.space.name}", plan.total, "trials") as bar:
        reporter = Reporter(tracker, plan, objective, bar)
        try:
            _open_tuner(states, plan, objective, concurrency).fit()
        finally:
            reporter.close()
    trials = reporter.trials
    best = best_trial(trials)
    if best is None:
        reason = next((trial.error for trial in trials if trial.error), "no error was recorded")
        raise TuningError(
            f"none of the {len(trials)} trials was trained to its end; the first reason: {reason}. Correct the config "
            "or the space and search anew"
        )
    kept = {node.key for node in objective.nodes(best.values) if node.kind == "model"}
    objective.forget([trial.values for trial in trials], ("model", "warmup"), kept)
    making.folder.write_json(TRIALS, [trial.model_dump(mode="json") for trial in trials])
    with making.folder.publish(BEST) as path:
        Path(path).write_text(best_config(plan, best, trials[0]), encoding="utf-8")
    making.record_files()
    counts = Counter(str(trial.status) for trial in trials)
    return {"best": best.number, "best_score": best.score, **counts, "facts": plan.facts(concurrency)}


def _open_tuner(states: Folder, plan: TunePlan, objective: Objective, concurrency: int) -> tune.Tuner:
    os.environ |= _TUNE_SETTINGS
    for logger in ("ray.tune", "ray.air"):
        # Nor stack traces of trials that fail.
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    process = tune.with_resources(
        tune.with_parameters(TrialProcess, objective=objective, places=states / "trials"),
        tune.PlacementGroupFactory([TRIAL_SHELL]),
    )
    states = states.absolute()
    place, name = states.root if states.is_local else states.url, plan.space.name
    if tune.Tuner.can_restore(f"{place}/{name}"):
        say("going on with a search that was interrupted")
        return tune.Tuner.restore(f"{place}/{name}", process, resume_unfinished=True)
    return tune.Tuner(
        process,
        tune_config=tune.TuneConfig(
            search_alg=make_searcher(plan),
            scheduler=make_scheduler(plan),
            num_samples=plan.total,
            max_concurrent_trials=concurrency,
            trial_dirname_creator=lambda trial: str(trial.trial_id),
        ),
        run_config=tune.RunConfig(
            name=name,
            storage_path=place,
            # Of the trial's own process: what works for it is tried again by itself.
            failure_config=tune.FailureConfig(max_failures=objective.max_failures),
            # What works keeps its own state.
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            callbacks=[Reporter.current],
            verbose=0,
        ),
    )


@dataclass(frozen=True)
class Suggestions:
    """Gives Optuna's search the ``number`` and the ``values`` of each trial.

    Args:
        parameters: of the space.
        defaults: values of the first trial.
        inside: whether the defaults lie in the space; else Optuna learns nothing from them.
    """

    parameters: Mapping[str, Parameter]
    defaults: Mapping[str, Any]
    inside: bool

    def __call__(self, trial: optuna.Trial) -> dict[str, Any]:
        if trial.number == 0 and not self.inside:
            return {"number": 0, "values": self.defaults}
        values = {key: parameter.suggest(trial, key) for key, parameter in self.parameters.items()}
        return {"number": trial.number, "values": values if trial.number else self.defaults}


def make_searcher(plan: TunePlan) -> OptunaSearch:
    """Make Optuna's search, whose first trial is the default; a grid is a list of points to evaluate."""
    space, settings = plan.space, plan.space.settings.search
    points = [
        {key: parameter.encode(values[key]) for key, parameter in space.parameters.items()}
        for values in (space.defaults, *plan.combinations)
    ]
    if not (inside := None not in points[0].values()):
        points[0] = {}
    seed = stable_hash64("tune", space.config.seed) % 2**32
    sampler: BaseSampler = RandomSampler(seed)
    if settings.algorithm == "tpe":
        sampler = TPESampler(seed=seed, n_startup_trials=settings.num_random + 1, constant_liar=True)
    suggestions = Suggestions(space.parameters, space.defaults, inside)
    return OptunaSearch(suggestions, metric="score", mode="max", points_to_evaluate=points, sampler=sampler)


class SparingASHA(ASHAScheduler):  # type: ignore[misc]  # Ray is not typed
    """ASHA that never stops the default, since the others are compared with it.

    Tune restores trials and not what its scheduler has seen: this one learns it from the trials.
    """

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_add(tune_controller, trial)
        for row in trial.last_result.get("rows", []) if trial.is_finished() else []:
            super().on_trial_result(tune_controller, trial, row)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        decision = super().on_trial_result(tune_controller, trial, result)
        return str(decision if trial.config["number"] else TrialScheduler.CONTINUE)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        # A trial that has failed has no score.
        if "score" in result:
            super().on_trial_complete(tune_controller, trial, result)


def make_scheduler(plan: TunePlan) -> TrialScheduler:
    """Make the scheduler that the space asks for."""
    settings = plan.space.settings.scheduler
    if settings.name == "none":
        return FIFOScheduler()
    # A trial that reaches the last epoch ends by itself, when its model is saved.
    return SparingASHA(
        time_attr="epoch", metric="score", mode="max", grace_period=plan.grace_epochs, max_t=plan.max_epochs,
        reduction_factor=settings.reduction_factor, stop_last_trials=False,
    )  # fmt: skip


class Reporter(Callback):  # type: ignore[misc]
    """Says what happens, logs trials, and removes large artefacts of trials that are over.

    Ray's MLflow callback writes flat runs; here a search is one run, with its trials below it.

    Args:
        tracker: MLflow run of the search.
        plan: what is searched.
        objective: removes what trials have left.
        bar: progress in trials.
    """

    #: That of this process: Tune pickles it with the search and restores it in another process.
    current: ClassVar[Reporter]

    def __init__(self, tracker: Tracker, plan: TunePlan, objective: Objective, bar: ProgressBar) -> None:
        self.tracker, self.plan, self.objective, self.bar = tracker, plan, objective, bar
        #: All trials, when the search is over.
        self.trials: list[Trial] = []
        #: By number: MLflow runs of running trials, and epochs that were reported.
        self._trackers: dict[int, Tracker] = {}
        self._reported: dict[int, int] = {}
        Reporter.current = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _current_reporter, ()

    def close(self) -> None:
        """End the search; MLflow runs of trials that are not over stay resumable."""
        for tracker in self._trackers.values():
            tracker.end("KILLED")

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        started = trial_of(trial)
        settings = ", ".join(f"{key.rpartition('.')[2]} {as_text(value)}" for key, value in started.values.items())
        say(f"trial {started.number}{'' if started.number else ' (the default)'}: {settings}")
        tracker = self.tracker.child(f"trial-{started.number:03d}", {"raydr.trial": str(started.number)})
        tracker.log_params(started.values)
        self._trackers[started.number] = tracker
        # A trial that resumes reports its rows again.
        self._reported[started.number] = started.epochs

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        number, unit = trial.config["number"], self.plan.unit
        for row in map(Row.model_validate, result["rows"][self._reported[number] :]):
            say(f"trial {number}: {unit} {row.epoch}, dev {row.score:.4f}")
            metrics = {f"{unit}/{name}": value for name, value in row.metrics.items()}
            self._trackers[number].log_metrics(metrics | {"score": row.score}, row.epoch)
            self._reported[number] = row.epoch

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        ended, known = trial_of(trial), list(map(trial_of, trials))
        if (tracker := self._trackers.pop(ended.number, None)) is not None:
            tracker.set_tags({"raydr.status": ended.status} | ({"raydr.error": ended.error} if ended.error else {}))
            tracker.end("FAILED" if ended.status == "failed" else "FINISHED")
        over = [other for other in known if other.status != "running"]
        # The work of the trial that has just ended may not be down yet.
        busy = [ended.values, *(other.values for other in known if other.status == "running")]
        self.objective.forget([other.values for other in over if other.values not in busy])
        best = best_trial(over)
        self.bar.set(len(over), self.plan.total)
        score = f", dev {ended.score:.4f}" if ended.rows else ""
        what = {"stopped": f"stopped after {self.plan.unit} {ended.epochs}{score}", "failed": f"failed: {ended.error}"}
        leader = f"; best so far trial {best.number} with {best.score:.4f}" if best is not None else ""
        text = what.get(ended.status, ended.status + score)
        say(f"trial {ended.number} {text} ({len(over)} of {self.plan.total} over{leader})")

    on_trial_error = on_trial_complete

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        self.trials = sorted(map(trial_of, trials), key=lambda trial: trial.number)


def _current_reporter() -> Reporter:
    return Reporter.current


def trial_of(trial: Any) -> Trial:
    """Return the state of a trial of Ray Tune."""
    last: Mapping[str, Any] = trial.last_result or {}
    status = "finished" if last.get("finished") else "stopped" if last.get("done") else "running"
    error = last.get("error", "its process died" if trial.status == "ERROR" else "")
    return Trial(
        number=trial.config["number"],
        values=trial.config["values"],
        status="failed" if error else status,
        rows=last.get("rows", []),
        error=error,
        seconds=round(last.get("time_total_s", 0.0), 2),
    )


def best_config(plan: TunePlan, best: Trial, default: Trial) -> str:
    """Write the best trial's config as YAML that says where it comes from."""
    config = with_values(plan.space.config, best.values)
    verb = "refresh" if plan.refreshes else "train"
    line = f"Trial {best.number} of the search {plan.space.name}, for raydr {verb}: dev {plan.measure} {best.score:.4f}"
    compared = f"the default {default.score:.4f}" if default.rows else "the default failed"
    return f"# {line}; {compared}\n{config.to_yaml()}"
