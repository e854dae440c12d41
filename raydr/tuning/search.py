"""A search with Ray Tune: Optuna proposes trials, a scheduler stops the bad ones, and a killed search is restored.

Artefact ``study``::

    trials.json    values, status and the rows of every epoch of all trials
    best.yaml      the best trial's config, ready to run

Until the search ends, the state of Ray Tune and of running trials lies beside these files. Artefacts of trials lie
under their own keys, as those of any node.
"""

from __future__ import annotations

import logging
import os
import warnings
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
from ray.tune.search import ConcurrencyLimiter
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
#: Rows of a search: enough to run it on Ray, which Ray Tune needs.
_MANY = 10**9
#: Resources of a trial's own process, which only starts tasks: memory, and a place on the head node. A cloud does not
#: reclaim the head, and the process keeps no GPU node from being released. The tasks reserve CPUs and GPUs.
TRIAL_SHELL = {"memory": 256 * 2**20, "node:__internal_head__": 0.001}
#: Turn off Tune's loggers and reporters, which :class:`Reporter` replaces, and allow results without a score.
_TUNE_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    # Ctrl-C kills the search; the same command resumes it.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
}


@artefact("study", rows=lambda settings: _MANY, content=lambda settings: settings.content)
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
    """Run the remaining trials and write the results of all trials into the artefact.

    Args:
        making: the ``study``.
        tracker: tracker of the search; the run of each trial is nested in its run.
        corpus, dataset: the data; the trials open them themselves.
        content: everything that the result depends on.
        plan: plan of the search.
        objective: the work of a trial.
        concurrency: number of trials at a time.

    Raises:
        TuningError: no trial was trained to its end.
        KeyboardInterrupt: Ctrl-C; the same command resumes the search.
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
        # The same command would otherwise repeat these failures, of a full disk for example, and train nothing.
        states.remove()
        reason = next((trial.error for trial in trials if trial.error), "no error was recorded")
        raise TuningError(
            f"none of the {len(trials)} trials was trained to its end; the first reason: {reason}. Correct the config "
            "or the space and search again"
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
        # No stack traces of failed trials either.
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # A resumed trial reports its epochs again.
    warnings.filterwarnings("ignore", "The reported value is ignored")
    process = tune.with_resources(
        tune.with_parameters(TrialProcess, objective=objective, places=states / "trials"),
        tune.PlacementGroupFactory([TRIAL_SHELL]),
    )
    states = states.absolute()
    place, name = states.root if states.is_local else states.url, plan.space.name
    begun = tune.Tuner.can_restore(f"{place}/{name}")
    # Written before a restore too, which reads these settings: those of this command count.
    tuner = tune.Tuner(
        process,
        tune_config=tune.TuneConfig(
            search_alg=Limiter(make_searcher(plan), concurrency),
            scheduler=make_scheduler(plan),
            num_samples=plan.total,
            trial_dirname_creator=lambda trial: str(trial.trial_id),
        ),
        run_config=tune.RunConfig(
            name=name,
            storage_path=place,
            # For failures of the trial's own process: its tasks have their own retries.
            failure_config=tune.FailureConfig(max_failures=objective.max_failures),
            # Tasks store their own state.
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            callbacks=[Reporter.current],
            verbose=0,
        ),
    )
    if not begun:
        return tuner
    say("resuming a search that was interrupted; trials that had begun go on together")
    return tune.Tuner.restore(f"{place}/{name}", process, resume_unfinished=True)


class Limiter(ConcurrencyLimiter):  # type: ignore[misc]
    """A limit of trials at a time, which a resumed search takes from its command."""

    def get_state(self) -> dict[str, Any]:
        return {name: value for name, value in super().get_state().items() if name != "max_concurrent"}


@dataclass(frozen=True)
class Suggestions:
    """The function from which Optuna's search takes ``number`` and ``values`` of each trial.

    Args:
        parameters: parameters of the space.
        defaults: values of the first trial.
        inside: whether the defaults lie in the space; otherwise Optuna learns nothing from them.
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
    """Return Optuna's search, whose first trial is the default; a grid is a list of points to evaluate."""
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
    """ASHA that never stops the default, since the other trials are compared with it.

    Tune restores trials but not the state of its scheduler, so this scheduler rebuilds its state from the trials.
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
    """Return the scheduler of a plan."""
    settings = plan.space.settings.scheduler
    if settings.name == "none":
        return FIFOScheduler()
    # A trial that reaches the last epoch ends without the scheduler, once its model is saved.
    return SparingASHA(
        time_attr="epoch", metric="score", mode="max", grace_period=plan.grace_epochs, max_t=plan.max_epochs,
        reduction_factor=settings.reduction_factor, stop_last_trials=False,
    )  # fmt: skip


class Reporter(Callback):  # type: ignore[misc]
    """A callback of Tune that prints progress, logs trials, and removes large artefacts of ended trials.

    Ray's MLflow callback writes flat runs; here the trials are nested in the run of the search.

    Args:
        tracker: MLflow run of the search.
        plan: plan of the search.
        objective: removes artefacts of ended trials.
        bar: progress in trials.
    """

    #: The reporter of this process: Tune pickles its callbacks and restores them in another process.
    current: ClassVar[Reporter]

    def __init__(self, tracker: Tracker, plan: TunePlan, objective: Objective, bar: ProgressBar) -> None:
        self.tracker, self.plan, self.objective, self.bar = tracker, plan, objective, bar
        #: All trials, after the end of the search.
        self.trials: list[Trial] = []
        #: By number: MLflow runs of running trials, and their reported epochs.
        self._trackers: dict[int, Tracker] = {}
        self._reported: dict[int, int] = {}
        Reporter.current = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _current_reporter, ()

    def close(self) -> None:
        """End the MLflow runs of running trials, which stay resumable."""
        for tracker in self._trackers.values():
            tracker.end("KILLED")

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        started = trial_of(trial)
        settings = ", ".join(f"{key.rpartition('.')[2]} {as_text(value)}" for key, value in started.values.items())
        say(f"trial {started.number}{'' if started.number else ' (the default)'}: {settings}")
        tracker = self.tracker.child(f"trial-{started.number:03d}", {"raydr.trial": str(started.number)})
        tracker.log_params(started.values)
        self._trackers[started.number] = tracker
        # A resumed trial reports its rows again.
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
        # Tasks of the trial that has just ended may still be stopping.
        busy = [ended.values, *(other.values for other in known if other.status == "running")]
        self.objective.forget([other.values for other in over if other.values not in busy])
        best = best_trial(over)
        self.bar.set(len(over), self.plan.total)
        score = f", dev {ended.score:.4f}" if ended.rows else ""
        texts = {"stopped": f"stopped after {self.plan.unit} {ended.epochs}{score}", "failed": f"failed: {ended.error}"}
        leader = f"; best so far trial {best.number} with {best.score:.4f}" if best is not None else ""
        text = texts.get(ended.status, ended.status + score)
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
    """Return the best trial's config as YAML, with a comment on its origin."""
    config = with_values(plan.space.config, best.values)
    verb = "refresh" if plan.refreshes else "train"
    line = f"Trial {best.number} of the search {plan.space.name}, for raydr {verb}: dev {plan.measure} {best.score:.4f}"
    compared = "the default failed" if default.status == "failed" else f"the default {default.score:.4f}"
    return f"# {line}; {compared}\n{config.to_yaml()}"
