"""Train named configs with several seeds, search, evaluate, and compare them by paired tests.

Tests compare each query's mean over the seeds: queries vary in the test, seeds do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raydr.artefacts import search
from raydr.artefacts.context import Context
from raydr.artefacts.declaration import Node
from raydr.artefacts.evaluation import PER_QUERY, evaluation
from raydr.config.run import RunConfig
from raydr.data.schema import read_parquet
from raydr.evaluation.comparison import Comparison, MeasureSummary, compare, summarize
from raydr.pipeline.recipe import Recipe
from raydr.pipeline.session import Session
from raydr.pipeline.training import judge_held_out
from raydr.store.artifact import Artifact

#: Makes the node of a config's model, from its declaration, name and seed.
ModelOf = Callable[[Context, str, int], Node]
#: measure → query id → value.
Values = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Compared:
    """Comparison of systems on a split.

    Args:
        split: evaluated split.
        seeds: seeds of the trainings.
        confidence: confidence level of the intervals.
        summaries: means over queries of each query's mean over seeds.
        comparisons: each system against the first, on the same values.
        by_seed: measure → system → mean for each seed.
    """

    split: str
    seeds: Sequence[int]
    confidence: float
    summaries: Sequence[MeasureSummary]
    comparisons: Sequence[Comparison]
    by_seed: dict[str, dict[str, list[float]]]

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Return columns and rows of a table: each measure of each system, and its difference to the first system."""
        baseline = self.summaries[0].system
        against = {(comparison.system, comparison.measure): comparison for comparison in self.comparisons}
        columns = ["measure", "system", f"mean [{self.confidence:.0%}]", "by seed", f"minus {baseline}", "p (Holm)"]
        rows = []
        measures = list(self.by_seed)
        for summary in sorted(self.summaries, key=lambda entry: measures.index(entry.measure)):
            seeds = " ".join(f"{mean:.3f}" for mean in self.by_seed[summary.measure][summary.system])
            interval = interval_text(summary.mean, summary.low, summary.high)
            row = [summary.measure, summary.system, interval, seeds, "", ""]
            if (other := against.get((summary.system, summary.measure))) is not None:
                row[4:6] = [f"{other.difference:+.3f} [{other.low:+.3f}, {other.high:+.3f}]", f"{other.p_holm:.4f}"]
            rows.append(row)
        return columns, rows


def interval_text(mean: float, low: float, high: float) -> str:
    """
    >>> interval_text(0.5, 0.456, 0.543)
    '0.500 [0.456, 0.543]'
    """
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


def trained_model(context: Context, name: str, seed: int) -> Node:
    """Train the config with a seed, on the data that its judges keep."""
    recipe = Recipe(context)
    settings = context.training().model_copy(update={"seed": seed})
    return recipe.training(context, name, settings, recipe.training_data(context.config.draws_candidates))


def compare_configs(
    session: Session,
    configs: Mapping[str, Context],
    seeds: Sequence[int],
    splits: Sequence[str],
    label: str,
    model_of: ModelOf = trained_model,
) -> list[Compared]:
    """Train each config with each seed, and compare them on each split; existing artefacts are reused.

    Afterwards passage vectors and indexes without a name are removed.

    Args:
        session: session of the run.
        configs: declarations by system name; the others are compared with the first.
        seeds: seeds of the trainings.
        splits: evaluated splits.
        label: name of the evaluations, for example ``confirm``.
        model_of: makes the node of a config's model.
    """
    models = {
        f"{system}-{seed}": model_of(run, f"{system}-{seed}", seed) for system, run in configs.items() for seed in seeds
    }
    base = next(iter(configs.values()))
    runs = {
        split: {name: search.of_model(base, model, name, split) for name, model in models.items()} for split in splits
    }
    trainings = [run.config.train for run in configs.values()]
    evaluations = {
        split: evaluation(base, split, model_runs, judge_held_out(base, split, trainings), label=f"{label}-{split}")
        for split, model_runs in runs.items()
    }
    made = session.make(*evaluations.values(), anew=[])
    session.prune(node for target in evaluations.values() for node in target.ancestors().values())
    compared = []
    for split, artifact in zip(evaluations, made, strict=True):
        values = query_values(artifact)
        by_system = {system: [values[f"{system}-{seed}"] for seed in seeds] for system in configs}
        compared.append(compare_seeds(base.config, split, seeds, by_system))
    return compared


def compare_seeds(
    config: RunConfig, split: str, seeds: Sequence[int], values: Mapping[str, Sequence[Values]]
) -> Compared:
    """Compare the query values of systems.

    Args:
        config: settings of the intervals and tests.
        split: evaluated split.
        seeds: seeds of the trainings.
        values: values of each system for each seed; the others are compared with the first.
    """
    per_query: dict[str, dict[str, dict[str, float]]] = {}
    by_seed: dict[str, dict[str, list[float]]] = {}
    for system, runs in values.items():
        per_query[system] = {
            measure: {query_id: float(np.mean([run[measure][query_id] for run in runs])) for query_id in first}
            for measure, first in runs[0].items()
        }
        for measure in runs[0]:
            means = [float(np.mean(list(run[measure].values()))) for run in runs]
            by_seed.setdefault(measure, {})[system] = means
    summaries = summarize(per_query, config.evaluate, config.seed)
    comparisons = compare(per_query, config.evaluate, config.seed)
    return Compared(split, seeds, config.evaluate.confidence, summaries, comparisons, by_seed)


def query_values(evaluation: Artifact) -> dict[str, dict[str, dict[str, float]]]:
    """Return system → measure → query id → value."""
    values: dict[str, dict[str, dict[str, float]]] = {}
    for row in read_parquet(evaluation.local(PER_QUERY)).to_pylist():
        values.setdefault(row["system"], {}).setdefault(row["measure"], {})[row["query_id"]] = row["value"]
    return values
