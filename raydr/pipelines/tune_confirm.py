"""Whether the best config of a search is better: it and the default are trained anew and evaluated on dev and test.

The seeds are others than the search's. Nothing is chosen here, so that test is looked at once. Everything lies under
keys of what it depends on; what is done is not done again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from raydr.artifacts import Artifact
from raydr.config import RunConfig
from raydr.console import say
from raydr.data.schema import read_parquet
from raydr.evaluation.comparison import Settings, compare, summarize
from raydr.models.checkpoint import checkpoint_fingerprint
from raydr.pipelines.retrieval_steps import StepBook, trainers
from raydr.pipelines.steps import Step, required, run_steps
from raydr.pipelines.tune_inputs import TrainingInputs
from raydr.reporting.tuning_report import Confirmation
from raydr.stages.evaluate import PER_QUERY
from raydr.stages.resources import cluster_capacity
from raydr.stages.train import train, training_key
from raydr.storage import Folder
from raydr.tracking import Tracker, TrackerHandle

DEFAULT, BEST = "default", "best"


@dataclass
class Confirming:
    """The steps of a confirmation.

    Args:
        configs: the default's and the best's, by :data:`DEFAULT` and :data:`BEST`.
        inputs: what each of their trainings reads.
        seeds: of the trainings.
        corpus: that is searched.
        dataset: queries and judgments.
        root: where everything is made.
        tracker: its MLflow run; the trainings are nested in it.
    """

    configs: Mapping[str, RunConfig]
    inputs: Mapping[str, TrainingInputs]
    seeds: Sequence[int]
    corpus: Artifact
    dataset: Artifact
    root: Folder
    tracker: Tracker
    #: MLflow runs of the trainings that are running.
    trackers: dict[str, TrackerHandle] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.book = StepBook(self.root, self.dataset, self.corpus)

    def run(self) -> list[Confirmation]:
        """Train, search and evaluate what is not done, and compare."""
        evaluations = self._plan()
        todo = required(list(self.book.steps.values()))
        if todo:
            say(f"confirming: {len(todo)} steps to do, {len(self.book.steps) - len(todo)} are there")
        run_steps(todo, cluster_capacity(), self._do)
        for step in self.book.steps.values():
            if step.temporary:
                step.folder.remove()
        return [self._compare(split, step) for split, step in evaluations.items()]

    def _plan(self) -> dict[str, Step]:
        config = self.configs[DEFAULT]
        splits = list(dict.fromkeys([config.data.dev_split, *config.data.test_splits]))
        runs: dict[str, dict[str, Step]] = {split: {} for split in splits}
        for system, own in self.configs.items():
            for seed in self.seeds:
                name = f"{system}-{seed}"
                model = self._train(name, own.model_copy(update={"seed": seed}), self.inputs[system])
                index = self.book.index(name, own, model)[1]
                for split in splits:
                    queries = self.book.queries(name, split, own, model)
                    runs[split][name] = self.book.search(name, split, own, index, queries)
        # Seeds one by one against the first of them would only confuse.
        return {
            split: self.book.evaluate(f"evaluation/{split}", split, config, found, tables=False)
            for split, found in runs.items()
        }

    def _train(self, name: str, config: RunConfig, inputs: TrainingInputs) -> Step:
        read = {"dataset": Artifact.open(inputs.dataset, "dataset").fingerprint}
        if inputs.negatives is not None:
            read["negatives"] = Artifact.open(inputs.negatives, "negatives").fingerprint
        settings = {**training_key(config), **read, "checkpoint": checkpoint_fingerprint(config.model)}

        def fit(output: Folder, _: dict[str, Folder]) -> Artifact:
            handle = self.trackers.get(step.key)
            return train(config, inputs.dataset, self.corpus.folder, output, inputs.negatives, handle)

        step = self.book.add(f"{name}/train", "model", settings, {}, fit, trainers(config))
        return step

    def _do(self, step: Step) -> None:
        say(f"== confirm: {step.label}")
        with self.tracker.stage(f"confirm-{step.label}") as tracker:
            self.trackers[step.key] = tracker.handle()
            step.run()

    def _compare(self, split: str, evaluation: Step) -> Confirmation:
        config = self.configs[DEFAULT]
        settings = Settings(
            config.evaluate.confidence, config.evaluate.bootstrap_samples, config.evaluate.permutations, config.seed
        )
        values = _values(evaluation.open())
        per_query: dict[str, dict[str, dict[str, float]]] = {}
        by_seed: dict[str, dict[str, list[float]]] = {}
        for system in self.configs:
            runs = [values[f"{system}-{seed}"] for seed in self.seeds]
            per_query[system] = {
                measure: {query_id: float(np.mean([run[measure][query_id] for run in runs])) for query_id in first}
                for measure, first in runs[0].items()
            }
            for measure in runs[0]:
                means = [float(np.mean(list(run[measure].values()))) for run in runs]
                by_seed.setdefault(measure, {})[system] = means
        return Confirmation(
            split,
            self.seeds,
            settings.confidence,
            summarize(per_query, settings),
            compare(per_query, settings),
            by_seed,
        )


def _values(evaluation: Artifact) -> dict[str, dict[str, dict[str, float]]]:
    """system → measure → query id → value."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in read_parquet(evaluation.local(PER_QUERY)).to_pylist():
        found.setdefault(row["system"], {}).setdefault(row["measure"], {})[row["query_id"]] = row["value"]
    return found
