"""Named configs, each trained with several seeds, searched, evaluated, and compared by paired tests.

What is compared are the means over seeds of each query's value, so that the test looks at queries and not at luck.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raydr.data.schema import read_parquet
from raydr.evaluation.comparison import Comparison, MeasureSummary, Settings, compare, summarize
from raydr.graph.declaring import Declaring
from raydr.graph.node import Node
from raydr.graph.nodes import data, retrieval, training
from raydr.graph.nodes.evaluation import evaluation
from raydr.graph.recipe import Recipe
from raydr.graph.session import Session
from raydr.stages.evaluate import PER_QUERY
from raydr.store.artifact import Artifact

#: The node of a config's model, for one seed: from its declaration, what it is called, and the seed.
ModelOf = Callable[[Declaring, str, int], Node]
#: system → measure → query id → value.
Values = dict[str, dict[str, dict[str, float]]]


@dataclass(frozen=True)
class Compared:
    """Systems on one split.

    Args:
        split: that was searched.
        seeds: of the trainings.
        confidence: of the intervals.
        summaries: means over queries, of each query's mean over the seeds.
        comparisons: each system against the first, on the same means.
        by_seed: measure → system → the mean of each seed.
    """

    split: str
    seeds: Sequence[int]
    confidence: float
    summaries: Sequence[MeasureSummary]
    comparisons: Sequence[Comparison]
    by_seed: dict[str, dict[str, list[float]]]


def trained_model(run: Declaring, name: str, seed: int) -> Node:
    """A training of the config with a seed of its own, on the data that its judges leave."""
    given = Recipe(run).training_data()
    settings = training.training_of(run).model_copy(update={"seed": seed})
    return training.trained(run, name, settings, given.pairs or data.dataset(run), given.negatives)


def compare_configs(
    session: Session,
    configs: Mapping[str, Declaring],
    seeds: Sequence[int],
    splits: Sequence[str],
    label: str,
    model_of: ModelOf = trained_model,
) -> list[Compared]:
    """Train every config with every seed, and compare them on every split; what is there is not made again.

    Passage vectors and indexes are removed when the comparison is over, unless something has named them.

    Args:
        session: the run at work.
        configs: declarations of the configs by the name of the system; the others are compared with the first.
        seeds: of the trainings.
        splits: that are searched.
        label: how the evaluations are called, for example ``confirm``.
        model_of: makes the node of a config's model.
    """
    models = {
        f"{system}-{seed}": model_of(run, f"{system}-{seed}", seed) for system, run in configs.items() for seed in seeds
    }
    base = next(iter(configs.values()))
    runs = {
        split: {name: retrieval.search(base, model, name, split) for name, model in models.items()} for split in splits
    }
    evaluations = {split: evaluation(base, split, found, f"{label}-{split}") for split, found in runs.items()}
    made = session.make(*evaluations.values(), anew=[])
    session.prune(node for one in evaluations.values() for node in one.ancestors().values())
    return [
        _compare(base, split, artifact, list(configs), seeds) for split, artifact in zip(evaluations, made, strict=True)
    ]


def _compare(run: Declaring, split: str, made: Artifact, systems: Sequence[str], seeds: Sequence[int]) -> Compared:
    evaluate = run.config.evaluate
    settings = Settings(evaluate.confidence, evaluate.bootstrap_samples, evaluate.permutations, run.config.seed)
    values = _values(made)
    per_query: Values = {}
    by_seed: dict[str, dict[str, list[float]]] = {}
    for system in systems:
        found = [values[f"{system}-{seed}"] for seed in seeds]
        per_query[system] = {
            measure: {query_id: float(np.mean([run[measure][query_id] for run in found])) for query_id in first}
            for measure, first in found[0].items()
        }
        for measure in found[0]:
            means = [float(np.mean(list(run[measure].values()))) for run in found]
            by_seed.setdefault(measure, {})[system] = means
    return Compared(
        split, seeds, settings.confidence, summarize(per_query, settings), compare(per_query, settings), by_seed
    )


def _values(evaluation: Artifact) -> Values:
    found: Values = {}
    for row in read_parquet(evaluation.local(PER_QUERY)).to_pylist():
        found.setdefault(row["system"], {}).setdefault(row["measure"], {})[row["query_id"]] = row["value"]
    return found
