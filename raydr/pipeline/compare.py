"""Search and evaluate models that were trained with several seeds, and compare them by paired tests.

Tests compare each query's mean over the seeds: queries vary in the test, seeds do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raydr.artefacts import Context, Node, search
from raydr.artefacts.evaluation import PER_QUERY, evaluation
from raydr.config.run import RunConfig
from raydr.console import percent
from raydr.data.tables import read_parquet
from raydr.evaluation.comparison import Comparison, MeasureSummary, compare, summarize
from raydr.pipeline.session import Session
from raydr.store import Artifact

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
        columns = [
            "measure",
            "system",
            f"mean [{percent(self.confidence)}]",
            "by seed",
            f"minus {baseline}",
            "p (Holm)",
        ]
        rows = []
        measures = list(self.by_seed)
        for summary in sorted(self.summaries, key=lambda entry: measures.index(entry.measure)):
            seeds = " ".join(f"{mean:.3f}" for mean in self.by_seed[summary.measure][summary.system])
            interval = interval_text(summary.mean, summary.low, summary.high)
            difference = ["", ""]
            if (other := against.get((summary.system, summary.measure))) is not None:
                difference = [f"{other.difference:+.3f} [{other.low:+.3f}, {other.high:+.3f}]", f"{other.p_holm:.4f}"]
            rows.append([summary.measure, summary.system, interval, seeds, *difference])
        return columns, rows


def interval_text(mean: float, low: float, high: float) -> str:
    """
    >>> interval_text(0.5, 0.456, 0.543)
    '0.500 [0.456, 0.543]'
    """
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


def compare_models(
    session: Session,
    context: Context,
    models: Mapping[str, Sequence[Node]],
    seeds: Sequence[int],
    splits: Sequence[str],
    label: str,
) -> list[Compared]:
    """Compare the models of systems on each split; existing artefacts are reused.

    Afterwards passage vectors and indexes without a name are removed.

    Args:
        session: session of the run.
        context: config of searches and evaluations.
        models: models of each system, a model for each seed; the other systems are compared with the first.
        seeds: seeds of the trainings.
        splits: evaluated splits.
        label: name of the evaluations, for example ``confirm``.
    """
    named = {
        f"{system}-{seed}": model for system, own in models.items() for seed, model in zip(seeds, own, strict=True)
    }
    evaluations = {}
    for split in splits:
        runs = {name: search.of_model(context, model, name, split) for name, model in named.items()}
        evaluations[split] = evaluation(context, split, runs, label=f"{label}-{split}")
    made = session.make(*evaluations.values(), anew=[])
    session.prune(node for target in evaluations.values() for node in target.ancestors().values())
    compared = []
    for split, artifact in zip(evaluations, made, strict=True):
        values = query_values(artifact)
        by_system = {system: [values[f"{system}-{seed}"] for seed in seeds] for system in models}
        compared.append(compare_seeds(context.config, split, seeds, by_system))
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
