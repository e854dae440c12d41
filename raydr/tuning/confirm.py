"""Whether the best config of a search is better: it and the default are trained anew and evaluated on dev and test.

The seeds are others than the search's. Nothing is chosen here, so that test is looked at once. Everything lies under
keys of what it depends on; what is done is not done again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from raydr.config.run import RunConfig
from raydr.data.schema import read_parquet
from raydr.evaluation.comparison import Settings, compare, summarize
from raydr.graph.retrieval_steps import StepBook
from raydr.graph.steps import Step, required, run_steps
from raydr.runtime.console import say
from raydr.runtime.tracking import Tracker, TrackerHandle
from raydr.stages.evaluate import PER_QUERY
from raydr.stages.resources import cluster_capacity
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder
from raydr.tuning.report import Confirmation

DEFAULT, BEST = "default", "best"


#: Runs by split and by the name of the system.
Runs = dict[str, dict[str, Step]]


@dataclass
class Confirming(ABC):
    """The steps of a confirmation.

    Args:
        configs: the default's and the best's, by :data:`DEFAULT` and :data:`BEST`.
        seeds: of the trainings.
        corpus: that is searched.
        dataset: queries and judgments.
        root: where everything is made.
        tracker: its MLflow run; the trainings are nested in it.
    """

    configs: Mapping[str, RunConfig]
    seeds: Sequence[int]
    corpus: Artifact
    dataset: Artifact
    root: Folder
    tracker: Tracker
    #: MLflow runs of the steps that are running.
    trackers: dict[str, TrackerHandle] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.book = StepBook(self.root, self.dataset, self.corpus)

    @abstractmethod
    def runs(self) -> Runs:
        """The steps, in the book, that end in a run for every config, seed and split."""

    def run(self) -> list[Confirmation]:
        """Train, search and evaluate what is not done, and compare."""
        config = self.configs[DEFAULT]
        # Seeds one by one against the first of them would only confuse.
        evaluations = {
            split: self.book.evaluate(f"evaluation/{split}", split, config, found, tables=False)
            for split, found in self.runs().items()
        }
        self.work(list(self.book.steps.values()))
        for step in self.book.steps.values():
            if step.temporary:
                step.folder.remove()
        return [self._compare(split, step) for split, step in evaluations.items()]

    @property
    def splits(self) -> list[str]:
        """The dev split and the test splits."""
        data = self.configs[DEFAULT].data
        return list(dict.fromkeys([data.dev_split, *data.test_splits]))

    def names(self) -> list[tuple[str, str, RunConfig]]:
        """Name, system and config of everything that is trained anew."""
        return [
            (f"{system}-{seed}", system, config.model_copy(update={"seed": seed}))
            for system, config in self.configs.items()
            for seed in self.seeds
        ]

    def work(self, steps: list[Step], place: str = "") -> None:
        """Run those of the steps that are not done."""

        def do(step: Step) -> None:
            label = f"{place}{step.label}"
            say(f"== confirm: {label}")
            with self.tracker.stage(f"confirm-{label}") as tracker:
                self.trackers[step.key] = tracker.handle()
                step.run()

        todo = required(steps)
        if todo:
            say(f"confirming: {place}{len(todo)} steps to do, {len(steps) - len(todo)} are there")
        run_steps(todo, cluster_capacity(), do)

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
