"""Evaluation of runs: measures against the judgments, answer-in-passage accuracy, intervals, comparisons.

Artefact ``evaluation``::

    per_query.parquet     (query_id, system, measure, value)
    summary.json          means with intervals, by system and measure; counts of queries
    comparisons.json      every pair of systems: difference, paired test, wins and losses
    metrics.png           bars with intervals
    report.html           all results on a page

Each part of a run is scored with the judgments of its queries; the values are parts until the artefact is finished, and
are then merged. The driver gets counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter

from raydr.artefacts import Context, Node, artefact
from raydr.artefacts.dataset import declare_data
from raydr.artefacts.query_values import (
    Values,
    answered_queries,
    fill_in,
    group_queries,
    not_flagged,
    not_trained_on,
    restrict,
    score_part,
)
from raydr.artefacts.run import Run, check_queries
from raydr.console import prose, show_summary, show_table, warn
from raydr.data import Corpus, Dataset
from raydr.data.tables import read_parquet
from raydr.distributed.parts import as_json, make_parts, scratch_parts, total_counts, write_contents, write_table
from raydr.distributed.pool import Pool
from raydr.errors import ConfigError, DataError
from raydr.evaluation.answer_match import answer_label
from raydr.evaluation.comparison import Subset, as_rows, compare, summarize
from raydr.evaluation.config import EvaluateConfig
from raydr.evaluation.linking import GroupMean, accuracies, group_means, linking_measures, normalised
from raydr.evaluation.metrics import deepest_cutoff, parse_measures
from raydr.pages.evaluation import (
    NOT_FLAGGED,
    EvaluationResult,
    bar_plot,
    evaluation_page,
    group_rows,
    marks,
    measure_table,
    subset_rows,
    transposed,
)
from raydr.store import Artifact, Building, Folder, Part

#: Smallest subset of queries whose means are shown.
MIN_SUBSET = 30
FLAGGED = (
    "{flagged:,} of {all:,} queries have a label that judge {judge} takes for wrong: the split is held out of noisy "
    "training pairs. "
)
BIASED = "The judge flags what its models score low, so these means are biased upward."
TOO_FEW = f"Means over the others need {MIN_SUBSET} queries."
NEW = "No positive of these queries is a positive of a query of {split}: means without memorised passages."
SUMMARY, COMPARISONS, PICTURE, REPORT = "summary.json", "comparisons.json", "metrics.png", "report.html"
PER_QUERY = "per_query.parquet"

_VALUES = pa.schema(
    [("query_id", pa.string()), ("system", pa.string()), ("measure", pa.string()), ("value", pa.float64())]
)


def evaluation(
    context: Context, split: str, runs: Mapping[str, Node], suspects: Node | None = None, label: str = ""
) -> Node:
    """Return the node of the measures of runs, with paired tests of each two systems.

    Args:
        context: config.
        split: evaluated split.
        runs: runs by system.
        suspects: verdicts on the labels of the split, for means without flagged labels.
        label: label of the step; default: ``evaluate-SPLIT``.
    """
    return evaluate.node(
        f"{context.place}{label or f'evaluate-{split}'}",
        **declare_data(context),
        runs=runs,
        suspects=suspects,
        systems=list(runs),
        settings=context.config.evaluate,
        split=split,
        train_split=context.config.data.train_split,
        seed=context.config.seed,
    )


@artefact("evaluation", version=7, rows=lambda of: of.dataset.rows(f"queries/{of.split}") * len(of.systems), moves=True)
def evaluate(
    making: Building,
    pool: Pool,
    dataset: Artifact,
    corpus: Artifact,
    runs: Mapping[str, Artifact],
    suspects: Artifact | None = None,
    *,
    systems: Sequence[str] = (),
    settings: EvaluateConfig,
    split: str,
    train_split: str = "train",
    seed: int,
) -> dict[str, Any]:
    """Evaluate runs on the queries of a split, and compare each two.

    All queries with a judgment count (for answer accuracy: with an allowed answer); queries without results score 0 and
    are counted.

    Args:
        making: artefact to make.
        pool: pool for scoring parts of runs.
        dataset: judgments and answers.
        corpus: corpus of the passages, for answer accuracy.
        runs: runs by system.
        suspects: ``verdicts`` on the labels of the split.
        systems: systems in the order of the report, which is part of the key.
        settings: measures and their uncertainty.
        split: evaluated split.
        train_split: training split; queries with new positives are also evaluated apart.
        seed: seed of the resampling.

    Returns:
        ``split``, ``systems``, and ``means``: mean of each measure, by system.

    Raises:
        ConfigError: there is no run.
        DataError: a run has no query of the split, ranks a passage twice, or names passages missing from the corpus.
    """
    if not runs:
        raise ConfigError("evaluate needs at least one run: make it with raydr search")
    # The name of a system need not be valid as a file name.
    names = {
        system: {f"{number}-{part}": part for part in Run(run).part_names}
        for number, (system, run) in enumerate(runs.items())
    }
    queries, values = Dataset(dataset), scratch_parts(making, "values")
    calls = {
        name: (settings, split, queries, Corpus(corpus), Run(runs[system]), part)
        for system, parts in names.items()
        for name, part in parts.items()
    }
    make_parts(values, pool, score_part, calls, f"evaluate: {split}")
    counts = {system: total_counts(values, parts) for system, parts in names.items()}
    deepest = deepest_cutoff(parse_measures(settings.scored_measures).values())
    for system, counted in counts.items():
        check_queries(Run(runs[system]), system, counted["in split"], split)
        of_answers = settings.answer_cutoffs if counted["answered"] else []
        _warn_if_shallow(max([deepest, *of_answers]), system, runs[system])
    if REPORT not in making.done:
        scored = {system: (list(parts), counts[system]["elsewhere"]) for system, parts in names.items()}
        provenance = list(making.identity.inputs.items())
        subsets = partial(_subsets, queries, Corpus(corpus), split, train_split, suspects)
        making.done.update(
            pool.run(_finish, making.folder, values.folder, settings, seed, queries, split, subsets, scored, provenance)
        )
    means: dict[str, dict[str, float]] = {system: {} for system in runs}
    for row in making.folder.read_json(SUMMARY)["measures"]:
        means[row["system"]][row["measure"]] = row["mean"]
    return {"split": split, "systems": list(runs), "means": means}


def load_result(artifact: Artifact) -> EvaluationResult:
    """Read the figures of an ``evaluation`` artefact."""
    summary = artifact.read_json(SUMMARY)
    figures = {"summaries": summary["measures"], "comparisons": artifact.read_json(COMPARISONS)}
    return TypeAdapter(EvaluationResult).validate_python(summary | figures)


def show(artifact: Artifact) -> None:
    """Print the measures of an ``evaluation``, warnings of missing results, and its place."""
    result = load_result(artifact)
    # With more systems the intervals would not fit into 80 columns.
    intervals = len(result.systems) <= 2
    caption, table = measure_table(result, intervals)
    show_table(f"{result.split}: {caption}", *table)
    if result.comparisons:
        prose(marks(result))
    for subset in result.subsets:
        if not subset.summaries:
            warn(subset.meaning)
            continue
        show_table(f"{result.split}, {subset.name}: {subset.num_queries:,} queries", *subset_rows(subset))
        prose(subset.meaning)
    for system in result.systems if result.groups else ():
        show_table(f"{system} by category", *transposed(group_rows(result, system, of_partitions=False)))
    if absent := max((counts.get("judgments_not_in_corpus", 0) for counts in result.counts.values()), default=0):
        warn(f"{absent:,} judgments name passages that are not in the corpus: they count as misses")
    if of := next((counts for counts in result.counts.values() if "without_positive" in counts), None):
        warn(
            f"{of['without_positive']:,} of {of['judged']:,} judged queries have no positive, and score 0 in each mean"
        )
    for system, counts in result.counts.items():
        if counts["without_results"]:
            warn(f"{system}: {counts['without_results']:,} queries of the split have no result and score 0")
        if strangers := counts["in_run_but_not_in_split"]:
            warn(f"{system}: {strangers:,} queries of the run are not in the split, and are ignored")
    show_summary("evaluation", {"report": artifact.folder / REPORT, "per query": artifact.folder / PER_QUERY})


def _warn_if_shallow(wanted: int, system: str, run: Artifact) -> None:
    """Warn if the run is shallower than a measure's cut-off, which lowers the measure."""
    depth = run.info.get("top_k")
    if depth is not None and depth < wanted:
        warn(
            f"{system}: the run holds {depth} passages a query, but a measure reads {wanted} and will be too low; "
            f"set search.top_k (and rerank.depth, if a ranker orders it) to {wanted}, or import a run of that depth"
        )


def _subsets(
    data: Dataset, corpus: Corpus, split: str, train_split: str, suspects: Artifact | None, judged: Sequence[str]
) -> dict[tuple[str, str], Collection[str]]:
    """Return the queries of each subset of a split's judged queries, by its name and meaning."""
    subsets: dict[tuple[str, str], Collection[str]] = {}
    if suspects is not None:
        kept = not_flagged(suspects, split, judged)
        if num_flagged := len(judged) - len(kept):
            flagged = FLAGGED.format(flagged=num_flagged, all=len(judged), judge=suspects.info["judge"])
            subsets[NOT_FLAGGED, flagged + (BIASED if len(kept) >= MIN_SUBSET else TOO_FEW)] = kept
    new = not_trained_on(data, corpus, split, train_split)
    if MIN_SUBSET <= len(new) < len(judged):
        subsets["positives that are new", NEW.format(split=train_split)] = new
    return subsets


def _finish(
    folder: Folder,
    values: Folder,
    settings: EvaluateConfig,
    seed: int,
    data: Dataset,
    split: str,
    subsets_of: Callable[[Sequence[str]], dict[tuple[str, str], Collection[str]]],
    scored: Mapping[str, tuple[list[str], int]],
    provenance: list[tuple[str, str]],
) -> Mapping[str, Part]:
    """Merge the parts of each system, fill in queries without results, and write the artefact.

    ``scored`` holds the parts of each system, and the number of its queries outside the split.
    """
    judgments = data.judgments(split)
    judged = pc.unique(judgments["query_id"]).to_pylist()
    without_positive = len({*judged}.difference(judgments.filter(pc.field("relevance") > 0)["query_id"].to_pylist()))
    absent = data.absent(split).num_rows
    answered = list(answered_queries(settings, data.queries(split))) if settings.answer_cutoffs else []
    if not judged and not answered:
        raise DataError(
            f"split {split!r} of the data set at {data.artifact.folder} has no judgments, and no query's answers count "
            "(evaluate.answer_cutoffs, evaluate.answer_query_prefixes): nothing to evaluate"
        )
    expected = dict.fromkeys(parse_measures(settings.measures), judged)
    if answered:
        expected |= {answer_label(cutoff): answered for cutoff in settings.answer_cutoffs}
    worlds = group_queries(data.queries(split), judged)
    per_query: dict[str, Values] = {}
    groups: list[GroupMean] = []
    counts: dict[str, dict[str, int]] = {}
    for system, (names, elsewhere) in scored.items():
        table = pa.concat_tables([read_parquet(values.localize(name)) for name in names])
        per_query[system] = {label: fill_in(label, ids, table) for label, ids in expected.items()}
        further: Values = {}
        if settings.linking_depth:
            first, among = (
                fill_in(label, judged, table) for label in parse_measures(linking_measures(settings.linking_depth))
            )
            per_query[system] |= accuracies(first, worlds.get("partition", {}))
            further = normalised(first, among, settings.linking_depth)
        of_judged = {
            label: values for label, values in per_query[system].items() if expected.get(label) is not answered
        }
        groups.extend(group_means(system, of_judged | further, worlds))
        counts[system] = {
            "judged": len(judged),
            "without_results": len({*judged, *answered} - set(table["query_id"].to_pylist())),
            "with_answers": len(answered),
            "in_run_but_not_in_split": elsewhere,
            **({"without_positive": without_positive} if without_positive else {}),
            **({"judgments_not_in_corpus": absent} if absent else {}),
        }
    summaries, comparisons = summarize(per_query, settings, seed), compare(per_query, settings, seed, every_pair=True)
    of_world = worlds.get("partition", {})
    subsets = [
        Subset(
            name,
            meaning,
            len(queries),
            summarize(restrict(per_query, queries, of_world), settings, seed) if len(queries) >= MIN_SUBSET else [],
        )
        for (name, meaning), queries in subsets_of(judged).items()
    ]
    result = EvaluationResult(split, settings.confidence, summaries, comparisons, counts, groups, subsets)
    picture = bar_plot(result)
    summary = {
        "split": split,
        "confidence": settings.confidence,
        "measures": as_rows(result.summaries),
        "counts": counts,
        **({"groups": as_rows(groups)} if groups else {}),
        **({"subsets": as_rows(subsets)} if subsets else {}),
    }
    contents: dict[str, bytes | str] = {
        SUMMARY: as_json(summary),
        COMPARISONS: as_json(as_rows(result.comparisons)),
        PICTURE: picture,
        REPORT: evaluation_page(result, picture, provenance),
    }
    return {PER_QUERY: write_table(folder, PER_QUERY, _per_query_table(per_query))} | write_contents(folder, contents)


def _per_query_table(per_query: dict[str, Values]) -> pa.Table:
    rows = [
        (query_id, system, label, value)
        for system, measures in per_query.items()
        for label, values in measures.items()
        for query_id, value in values.items()
    ]
    columns = zip(zip(*rows, strict=True), _VALUES.types, strict=True)
    return pa.Table.from_arrays([pa.array(column, type=kind) for column, kind in columns], schema=_VALUES)
