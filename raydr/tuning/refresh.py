"""The search over refreshes: a trial runs its rounds one after the other, and tells the dev measures after each.

The steps of all trials lie in one folder under keys of what they depend on (:mod:`raydr.graph.steps`), so that what
trials agree in is made once, be it the BM25 candidates or whole rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from raydr.config.run import RunConfig
from raydr.errors import BusyError, ConfigError, RaydrError
from raydr.graph.job import Job
from raydr.graph.refresh_plan import RefreshPlan, Round, plan_refresh
from raydr.graph.refresh_results import best_round, chosen_measure, dev_measures, dev_value, out_of_patience
from raydr.graph.retrieval_steps import count_shards
from raydr.graph.steps import Step, required, run_steps
from raydr.models.checkpoint import checkpoint_fingerprint
from raydr.runtime.console import say
from raydr.runtime.tracking import Tracker
from raydr.stages.failures import worker_errors
from raydr.stages.train import training_key
from raydr.store.artifact import Artifact, Identity, copy_artifact, fingerprint_of
from raydr.store.folder import Folder
from raydr.tuning.confirm import Confirming, Runs
from raydr.tuning.objective import MODEL, RowsSoFar
from raydr.tuning.plan import TunePlan
from raydr.tuning.resources import Shares
from raydr.tuning.search import ROUNDS
from raydr.tuning.task import VERSION, Task
from raydr.tuning.trial import streamed
from raydr.tuning.trial_config import with_values
from raydr.tuning.trials import Row

#: Seconds between two looks at a step that another trial is making.
_LOOK_S = 0.5


@dataclass(frozen=True)
class RefreshObjective:
    """See :class:`raydr.tuning.objective.Objective`.

    Args:
        config: of the default trial.
        dataset: that is trained on.
        corpus: its corpus.
        root: the folder of all trials' steps.
        shares: of the resources.
    """

    config: RunConfig
    dataset: Folder
    corpus: Folder
    root: Folder
    shares: Shares

    def run(self, values: Mapping[str, Any], place: Folder, start: Folder | None) -> Iterator[RowsSoFar]:
        with worker_errors():
            yield from streamed(refresh_rows, 0, 0)(
                with_values(self.config, values), self.dataset, self.corpus, self.root, place / MODEL, self.shares.each
            )

    def state(self, place: Folder) -> Folder | None:
        """No other trial can go on from the middle of a refresh."""

    def forget(self, ended: Mapping[str, Any], running: Sequence[Mapping[str, Any]]) -> None:
        """Remove passage vectors and indexes; models, runs and candidates stay, since trials to come may share them."""
        kept = {step.key for values in running for step in self._steps(values)}
        for step in self._steps(ended):
            if step.temporary and step.key not in kept:
                step.folder.remove()

    def _steps(self, values: Mapping[str, Any]) -> list[Step]:
        try:
            return _plan(with_values(self.config, values), self.root, self.dataset, self.corpus).steps
        except RaydrError:
            # Such a trial fails, and says why; it has made nothing.
            return []


def _plan(config: RunConfig, root: Folder, dataset: Folder, corpus: Folder) -> RefreshPlan:
    return plan_refresh(config, root, Artifact.open(dataset, "dataset"), Artifact.open(corpus, "corpus"))


def refresh_rows(
    config: RunConfig, dataset: Folder, corpus: Folder, root: Folder, output: Folder, capacity: Mapping[str, float]
) -> Iterator[RowsSoFar]:
    """Run the rounds of a refresh, and tell the rows so far after every one; a Ray task that streams.

    Args:
        config: of the trial.
        dataset: what is trained on.
        corpus: its corpus.
        root: where the steps are made; what is there already is not made again.
        output: where the model of the best round goes.
        capacity: what the steps share, by Ray's names.

    Yields:
        All rows so far, and whether the refresh is over and its model there.
    """
    rows: list[Row] = []
    for done, over in _rounds(
        config, _plan(config, root, dataset, corpus), lambda steps: run_steps(required(steps), capacity, _make)
    ):
        rows.append(_row(config, done[-1], rows))
        if over:
            copy_artifact(best_round(config, config.refresh, done).model.open(), output)
        yield rows, over


def _rounds(
    config: RunConfig, plan: RefreshPlan, run: Callable[[list[Step]], None]
) -> Iterator[tuple[list[Round], bool]]:
    """Run the rounds one by one, until there are no more or patience is over.

    Yields:
        The rounds that are done, and whether they are all. The next one is begun when the caller comes back, so that a
        trial that is stopped has not begun it.
    """
    [arm] = plan.arms
    for one in arm.rounds:
        run([step for step in plan.steps if step.group <= one.number])
        done = arm.rounds[: one.number]
        values = [dev_value(config, arm.settings, each) for each in done]
        over = one is arm.rounds[-1] or out_of_patience(values, arm.settings.patience)
        yield done, over
        if over:
            return


def _row(config: RunConfig, done: Round, before: Sequence[Row]) -> Row:
    measures = dev_measures(config, done)
    value = measures[chosen_measure(config, config.refresh)]
    return Row(
        epoch=done.number,
        score=max(value, before[-1].score) if before else value,
        metrics={f"dev {measure}": mean for measure, mean in measures.items()},
    )


def _make(step: Step) -> None:
    """Make a step, or wait until the trial that is making it has done so."""
    while step.state() != "done":
        try:
            step.run()
        except BusyError:
            time.sleep(_LOOK_S)


@dataclass
class RefreshConfirming(Confirming):
    """Runs the rounds of the default and the best anew; the best round of each, by dev, is searched on test."""

    def runs(self) -> Runs:
        found: Runs = {split: {} for split in self.splits}
        for name, _, config in self.names():
            best = self._best_round(name, config)
            dev = config.data.dev_split
            for split in self.splits:
                if split == dev:
                    found[split][name] = best.runs[split]
                    continue
                queries = self.book.queries(name, split, config, best.model)
                found[split][name] = self.book.search(name, split, config, best.vectors[1], queries)
        return found

    def _best_round(self, name: str, config: RunConfig) -> Round:
        def tracker(step: Step) -> Any:
            return self.trackers.get(step.key)

        plan = plan_refresh(config, self.root, self.dataset, self.corpus, tracker)
        done: list[Round] = []
        for done, _ in _rounds(config, plan, lambda steps: self.work(steps, f"{name}/")):
            say(f"{name}: {len(done)} of {config.refresh.num_rounds} rounds are done")
        best = best_round(config, config.refresh, done)
        # Another system's best round may be one of this plan as well.
        kept = {step.key for step in best.vectors} | self.book.steps.keys()
        for step in plan.steps:
            if step.temporary and step.key not in kept:
                step.folder.remove()
        # Searched below, and removed when the confirmation is over.
        for step in best.vectors:
            self.book.steps.setdefault(step.key, step)
        return best


def refresh_task(job: Job, plan: TunePlan, shares: Shares, output: Folder, dtype: str) -> Task:
    """Say what a trial does.

    Args:
        job: the run, with its data prepared.
        plan: what is searched.
        shares: of the resources.
        output: the folder of the search.
        dtype: the arithmetic of all trainings.
    """
    config = _measured_on_dev(plan.space.config, dtype)
    corpus, dataset = Artifact.open(job.corpus, "corpus"), Artifact.open(job.dataset, "dataset")
    _check_shards(config, corpus, shares)
    # What cannot be planned is said before anything runs.
    corners = [
        plan_refresh(_measured_on_dev(corner, dtype), Folder("memory://unused"), dataset, corpus)
        for _, corner in plan.space.corners()
    ]
    verdicts = {step.key for corner in corners for step in corner.steps if step.kind == "verdicts"}

    def confirming(
        configs: Mapping[str, RunConfig], seeds: Sequence[int], root: Folder, tracker: Tracker
    ) -> RefreshConfirming:
        measured = {system: _measured_on_dev(own, dtype) for system, own in configs.items()}
        return RefreshConfirming(measured, seeds, corpus, dataset, root, tracker)

    objective = RefreshObjective(config, job.dataset, job.corpus, output / ROUNDS, shares)
    return Task(objective, _identity(plan, config, dataset, corpus, verdicts), confirming, lambda: None)


def _check_shards(config: RunConfig, corpus: Artifact, shares: Shares) -> None:
    num_shards = count_shards(config, corpus)
    if num_shards > 1 and shares.concurrency > 1:
        raise ConfigError(
            f"trials.concurrency is {shares.concurrency}, and an index of {corpus.rows('passages'):,} passages has "
            f"{num_shards} shards: two trials that search at a time could each hold some of the actors that the other "
            "waits for. Run one at a time, or make index.shard_rows larger"
        )


def _measured_on_dev(config: RunConfig, dtype: str) -> RunConfig:
    """The config of a trial: one arithmetic for all, and nothing is evaluated but dev."""
    train = config.train.model_copy(update={"dtype": dtype})
    refresh = config.refresh.model_copy(update={"evaluate_splits": [config.data.dev_split]})
    return config.model_copy(update={"train": train, "refresh": refresh})


def _identity(plan: TunePlan, config: RunConfig, dataset: Artifact, corpus: Artifact, verdicts: Set[str]) -> Identity:
    """What the trials depend on. Which are stopped also depends on the order in which they end, which nobody knows.

    ``verdicts`` are the keys of those of the space's corners: the default need not have the judges that others have.
    """
    settings = plan.space.settings
    steps = plan_refresh(config, Folder("memory://unused"), dataset, corpus).steps
    return Identity(
        kind="search",
        version=VERSION,
        config={
            "objective": "refresh",
            **training_key(config),
            "refresh": config.refresh.fingerprint_settings(exclude={"keep_vectors", "arms"}),
            "negatives": config.negatives.fingerprint_settings() if config.negatives is not None else None,
            "measure": plan.measure,
            "space": settings.space,
            "search": settings.search.fingerprint_settings() | {"num_trials": plan.total},
            "scheduler": settings.scheduler.fingerprint_settings() | {"grace_epochs": plan.schedule.grace_epochs},
        },
        inputs={
            "dataset": dataset.fingerprint,
            "corpus": corpus.fingerprint,
            "checkpoint": checkpoint_fingerprint(config.model),
            # All else that a refresh depends on: how it encodes, indexes and searches, judges and their models.
            "rounds of the default": fingerprint_of([step.key for step in steps]),
            **({"verdicts of trials": fingerprint_of(sorted(verdicts))} if verdicts else {}),
        },
    )
