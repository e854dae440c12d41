"""Whether the best config of a search is better: it and the default are trained anew and evaluated on dev and test.

The seeds are others than the search's. Nothing is chosen here, so that test is looked at once. Everything lies under
keys of what it depends on; what is done is not done again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from raydr.artifacts import Artifact
from raydr.config import RunConfig
from raydr.console import say
from raydr.data.schema import read_parquet
from raydr.evaluation.comparison import Settings, compare, summarize
from raydr.models.checkpoint import checkpoint_fingerprint
from raydr.pipelines import refresh_steps as make
from raydr.pipelines.refresh_plan import Make
from raydr.pipelines.steps import Resources, Step, required, run_steps
from raydr.pipelines.tune_inputs import TrainingInputs
from raydr.reporting.tuning_report import Confirmation
from raydr.stages.evaluate import PER_QUERY
from raydr.stages.resources import cluster_capacity
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
    steps: dict[str, Step] = field(default_factory=dict)
    #: MLflow runs of the trainings that are running.
    trackers: dict[str, TrackerHandle] = field(default_factory=dict)

    def run(self) -> list[Confirmation]:
        """Train, search and evaluate what is not done, and compare."""
        evaluations = self._plan()
        todo = required(list(self.steps.values()))
        if todo:
            say(f"confirming: {len(todo)} steps to do, {len(self.steps) - len(todo)} are there")
        run_steps(todo, cluster_capacity(), self._do)
        for step in self.steps.values():
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
                index = self._index(name, own, model)
                for split in splits:
                    runs[split][name] = self._search(name, split, own, model, index)
        return {split: self._evaluate(split, found) for split, found in runs.items()}

    def _train(self, name: str, config: RunConfig, inputs: TrainingInputs) -> Step:
        read = {"dataset": Artifact.open(inputs.dataset, "dataset").fingerprint}
        if inputs.negatives is not None:
            read["negatives"] = Artifact.open(inputs.negatives, "negatives").fingerprint
        settings = {**make.training_settings(config), **read, "checkpoint": checkpoint_fingerprint(config.model)}

        def fit(output: Folder, _: dict[str, Folder]) -> Artifact:
            from raydr.stages.train import train

            handle = self.trackers.get(step.key)
            return train(config, inputs.dataset, self.corpus.folder, output, inputs.negatives, handle)

        workers = config.train.num_workers
        fewest = workers if isinstance(workers, int) else workers[0]
        demand = {"CPU": fewest * config.train.cpus_per_worker, "GPU": float(fewest if config.train.use_gpu else 0)}
        step = self._add(f"{name}/train", "model", settings, {}, fit, demand)
        return step

    def _index(self, name: str, config: RunConfig, model: Step) -> Step:
        work: Make = partial(make.encode_passages, config, self.corpus.folder)
        passages = self._add(
            f"{name}/passages", "embeddings", _encoding(config), {"model": model}, work, _all_cpus(), True
        )
        settings = config.index.model_dump(mode="json")
        work = partial(make.index, config)
        return self._add(f"{name}/index", "index", settings, {"passages": passages}, work, _all_cpus(), True)

    def _search(self, name: str, split: str, config: RunConfig, model: Step, index: Step) -> Step:
        encoding = _encoding(config) | {"split": split}
        work: Make = partial(make.encode_queries, config, split, self.dataset.folder)
        queries = self._add(
            f"{name}/queries-{split}", "embeddings", encoding, {"model": model}, work, _all_cpus(), True
        )
        settings = config.search.model_dump(mode="json") | {"split": split}
        needs = {"index": index, "queries": queries}
        return self._add(f"{name}/run-{split}", "run", settings, needs, partial(make.search, config, name), _all_cpus())

    def _evaluate(self, split: str, runs: dict[str, Step]) -> Step:
        config = self.configs[DEFAULT]
        settings = {"split": split, "seed": config.seed, **config.evaluate.model_dump()}

        def work(output: Folder, inputs: dict[str, Folder]) -> Artifact:
            from raydr.stages.evaluate import evaluate

            # Seeds one by one against the first of them would only confuse.
            return evaluate(config, split, self.dataset.folder, self.corpus.folder, inputs, output, tables=False)

        return self._add(f"evaluation/{split}", "evaluation", settings, dict(runs), work, {"CPU": 1.0})

    def _add(
        self,
        label: str,
        kind: str,
        settings: dict[str, Any],
        needs: dict[str, Step],
        work: Make,
        demand: Resources,
        temporary: bool = False,
    ) -> Step:
        fixed = {"data": self.dataset.fingerprint, "passages": self.corpus.fingerprint}
        step = Step(label, self.root, kind, {**settings, **fixed}, needs, work, demand, temporary=temporary)
        return self.steps.setdefault(step.key, step)

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


def _encoding(config: RunConfig) -> dict[str, Any]:
    return config.encode.model_dump(include={"dtype", "token_budget", "device"})


def _all_cpus() -> Resources:
    """Of stages that take what there is: they run one after the other."""
    return {"CPU": 1e9}
