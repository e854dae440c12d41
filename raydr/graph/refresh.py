"""Refresh rounds: train, encode, index, search, mine, judge, train again; evaluated after each round.

The plan is made first and shown with its reasons; then the steps run, side by side where resources allow it. Killed at
any point, the same command goes on: finished steps are found by their keys, begun ones by their finished parts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from raydr.config.run import RunConfig
from raydr.errors import ArtifactError
from raydr.graph.job import Job, log_made
from raydr.graph.refresh_plan import Arm, RefreshPlan, plan_refresh
from raydr.graph.refresh_results import (
    RoundResult,
    best_round,
    check_choice,
    chosen_measure,
    dev_value,
    finished_rounds,
    out_of_patience,
    round_result,
)
from raydr.graph.stage_times import StageTime, note_time
from raydr.graph.steps import Step, reason, required, run_steps
from raydr.graph.workspace import Workspace
from raydr.pages.refresh import refresh_page, refresh_rows
from raydr.runtime.console import say, show_summary, show_table, warn
from raydr.runtime.tracking import Tracker, TrackerHandle
from raydr.stages.encode import check_encoders
from raydr.stages.evaluate import REPORT
from raydr.stages.worker_group import checkpoint_folder
from raydr.store.artifact import Artifact, only_writer
from raydr.store.folder import Folder

#: The last plan of the working folder, and what the rounds of each arm came to.
PLAN, RESULTS, PAGE = "plan.json", "rounds.json", "report.html"


@dataclass
class RefreshOutcome:
    """What a refresh came to: its rounds by arm, and where its files are."""

    rounds: dict[str, list[RoundResult]]
    folder: Folder
    #: Number of each arm's best round on the dev split.
    best: dict[str, int]


def plan_only(config: RunConfig) -> RefreshPlan:
    """Show what a refresh would do now; nothing is run, and Ray is not needed.

    Raises:
        ArtifactError: the data are not prepared.
    """
    workspace = Workspace(Folder(config.workdir).absolute())
    dataset = workspace.noisy_dataset if config.inject_noise is not None else workspace.dataset
    corpus = workspace.corpus
    plan = plan_refresh(config, workspace.refresh, Artifact.open(dataset, "dataset"), Artifact.open(corpus, "corpus"))
    _show_plan(plan, workspace.refresh)
    return plan


def run_refresh(job: Job) -> RefreshOutcome:
    """Run all rounds of all arms; what is done already is not done again.

    Raises:
        ConfigError: the settings do not fit the data or the cluster.
        BusyError: another process runs a refresh in the same working folder.
    """
    # The data are what the rounds start from: only the rounds are done again.
    data = replace(job, overwrite=False)
    data.prepare()
    if job.config.inject_noise is not None:
        data.inject_noise()
    return _Refresh(job).run()


@dataclass
class _Refresh:
    job: Job
    #: Trackers of the steps that are running, for those that log from a worker.
    trackers: dict[str, Tracker] = field(default_factory=dict)
    #: Last round of the arms that were stopped early.
    stopped: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root = self.job.workspace.refresh
        for settings in self.job.config.refresh_arms().values():
            check_choice(self.job.config, settings)
        self.plan = plan_refresh(
            self.job.config,
            self.root,
            Artifact.open(self.job.dataset, "dataset"),
            Artifact.open(self.job.corpus, "corpus"),
            self._tracker_of,
        )
        self.arms_of: dict[str, list[Arm]] = {step.key: [] for step in self.plan.steps}
        for arm in self.plan.arms:
            for key in arm.steps() & self.arms_of.keys():
                self.arms_of[key].append(arm)

    def run(self) -> RefreshOutcome:
        from raydr.stages.resources import cluster_capacity

        with only_writer(self.root):
            if self.job.overwrite:
                for step in self.plan.steps:
                    step.folder.remove()
                    # Of a training that was interrupted.
                    checkpoint_folder(step.folder).remove()
            todo = _show_plan(self.plan, self.root)
            if any(step.kind == "embeddings" for step in todo):
                check_encoders(self.job.config.encode)
            self._check_inputs(todo)
            self.root.write_json(PLAN, {step.label + "@" + arm.name: step.describe() for arm in self.plan.arms
                                        for step in self.plan.steps if arm in self.arms_of[step.key]})  # fmt: skip
            for arm in self.plan.arms:
                self._see_whether_to_stop(arm)
            run_steps(required(self.plan.steps), cluster_capacity(), self._do, self._wanted)
            return self._finish()

    # -- steps

    def _tracker_of(self, step: Step) -> TrackerHandle | None:
        return self.trackers[step.key].handle()

    def _do(self, step: Step) -> None:
        say(f"== {step.label}: {step.work} -> {step.folder}")
        num_parts = step.num_parts_done()
        started = time.monotonic()
        with self.job.tracker.stage(step.label, {"raydr.step": step.key}) as tracker:
            self.trackers[step.key] = tracker
            log_made(tracker, step.run())
        seconds = time.monotonic() - started
        note_time(self.root, StageTime(stage=step.label, seconds=seconds, num_parts_before=num_parts, key=step.key))
        for arm in self.arms_of[step.key]:
            if any(step in one.evaluations.values() for one in arm.rounds):
                self._see_whether_to_stop(arm)

    def _wanted(self, step: Step) -> bool:
        return any(step.group <= self.stopped.get(arm.name, step.group) for arm in self.arms_of[step.key])

    def _see_whether_to_stop(self, arm: Arm) -> None:
        patience = arm.settings.patience
        if patience is None or arm.name in self.stopped:
            return
        done = finished_rounds(arm)
        values = [dev_value(self.job.config, arm.settings, one) for one in done]
        if out_of_patience(values, patience) and len(values) < len(arm.rounds):
            self.stopped[arm.name] = done[-1].number
            say(
                f"{arm.name}: {patience} {'round' if patience == 1 else 'rounds'} without a better "
                f"{self._measure(arm)} than round {done[values.index(max(values))].number}'s: no further round"
            )

    def _check_inputs(self, todo: list[Step]) -> None:
        """Make again what is damaged: a part that was changed or cut off since it was finished."""
        read = {step.key: step for one in todo for step in one.needs.values() if step.state() == "done"}
        for step in read.values():
            try:
                step.open().verify()
            except ArtifactError as error:
                warn(f"{error}; {step.label} is made again")
                step.folder.remove()

    # -- results

    def _measure(self, arm: Arm) -> str:
        return chosen_measure(self.job.config, arm.settings)

    def _finish(self) -> RefreshOutcome:
        finished = {arm.name: finished_rounds(arm) for arm in self.plan.arms}
        best = {
            arm.name: best_round(self.job.config, arm.settings, finished[arm.name]).number for arm in self.plan.arms
        }
        # What was chosen decides nothing about this, but an error above must not cost the vectors.
        self._prune()
        rounds: dict[str, list[RoundResult]] = {}
        for arm in self.plan.arms:
            rounds[arm.name] = [round_result(arm, one, self.root) for one in finished[arm.name]]
        self.root.write_json(
            RESULTS, {name: {"best": best[name], "rounds": [one.as_json() for one in found]}
                      for name, found in rounds.items()},
        )  # fmt: skip
        self._report(rounds, best, self._compare())
        return RefreshOutcome(rounds, self.root, best)

    def _prune(self) -> None:
        """Remove passage vectors and indexes that no arm keeps."""
        kept: set[str] = set()
        old: dict[str, Step] = {}
        for arm in self.plan.arms:
            done, keep = finished_rounds(arm), arm.settings.keep_vectors
            last = done if keep is None else done[-keep:]
            kept |= {step.key for one in last for step in one.vectors}
            old |= {step.key: step for one in done for step in one.vectors}
            if keep is not None:
                # Of the model that the first candidates were mined with.
                old |= {step.key: step for step in self.plan.steps if step.temporary and step.group == 0}
        for key, step in old.items():
            if key not in kept and step.state() == "done":
                step.folder.remove()
                say(f"removed {step.label} ({step.folder})")

    def _compare(self) -> dict[str, Step]:
        """By split, one evaluation over all rounds of all arms, each against the first round of the first arm."""
        several = len(self.plan.arms) > 1
        runs: dict[str, dict[str, Step]] = {}
        for arm in self.plan.arms:
            for one in finished_rounds(arm):
                for split, run in one.runs.items():
                    systems = runs.setdefault(split, {})
                    if run not in systems.values():
                        systems[f"{arm.name}-{one.number}" if several else f"round-{one.number}"] = run
        comparisons = {}
        for split, systems in runs.items():
            if len(systems) > 1:
                step = self.plan.book.evaluate(f"comparison/{split}", split, self.job.config, systems)
                self.arms_of[step.key] = []
                if self.job.overwrite:
                    step.folder.remove()
                if step.state() != "done":
                    self._do(step)
                comparisons[split] = step
        return comparisons

    def _report(self, rounds: dict[str, list[RoundResult]], best: dict[str, int], comparisons: dict[str, Step]) -> None:
        config, tracker = self.job.config, self.job.tracker
        flat = [one for found in rounds.values() for one in found]
        splits = list(dict.fromkeys(split for one in flat for split in one.measures))
        for split in splits:
            columns, rows = refresh_rows(flat, split, intervals=False)
            show_table(f"{split}, after each round", columns, rows)
        pages = {
            split: f"{step.folder.root.removeprefix(self.root.root).lstrip('/')}/{REPORT}"
            for split, step in comparisons.items()
        }
        with self.root.publish(PAGE) as path:
            page = refresh_page(config.name, flat, splits, best, pages, config.evaluate.confidence)
            Path(path).write_text(page, encoding="utf-8")
        for name in (PAGE, RESULTS):
            tracker.log_artifact(self.root.localize(name))
        facts: dict[str, object] = {}
        for arm in self.plan.arms:
            label, number = self._measure(arm), best[arm.name]
            for one in rounds[arm.name]:
                values = {split: one.measure(split, label) for split in splits}
                tracker.log_metrics(
                    {f"{arm.name}/{split}/{label}": found.mean for split, found in values.items() if found is not None},
                    one.number,
                )
            facts[f"best round ({arm.name})"] = number
            facts[f"its model ({arm.name})"] = str(arm.rounds[number - 1].model.folder)
        facts |= {"rounds": self.root.path(RESULTS), "report": self.root.path(PAGE)}
        show_summary("refresh", facts)


def _show_plan(plan: RefreshPlan, root: Folder) -> list[Step]:
    """Print what is to be done and why; returns the steps."""
    before = root.read_json(PLAN) if root.exists(PLAN) else {}
    todo = required(plan.steps)
    arms_of: dict[str, list[str]] = {}
    for arm in plan.arms:
        for key in arm.steps():
            arms_of.setdefault(key, []).append(arm.name)
    there = len(plan.steps) - len(todo)
    say(f"refresh: {len(todo)} steps to do, {there} are there" if todo else f"refresh: all {there} steps are done")
    for step in todo:
        arms = arms_of[step.key]
        last = next((before[f"{step.label}@{arm}"] for arm in arms if f"{step.label}@{arm}" in before), None)
        whose = f" ({', '.join(arms)})" if len(arms) < len(plan.arms) else ""
        # Not as a table: reasons are long, and a narrow terminal would cut them up.
        say(f"  {step.label}{whose}: {step.work}; {reason(step, last)}")
    return todo
