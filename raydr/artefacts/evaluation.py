"""Evaluation of runs: measures against the judgments, answer-in-passage accuracy, intervals, comparisons.

Artefact ``evaluation``::

    per_query.parquet     (query_id, system, measure, value)
    summary.json          means with intervals, by system and measure; counts of queries
    comparisons.json      every pair of systems: difference, paired test, wins and losses
    metrics.png           bars with intervals
    report.html           all of it on one page

Each part of a run is scored by itself with the judgments of its queries; the values, which are parts of their own until
the artefact is finished, are then put together. The driver gets counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raydr.artefacts.context import Context
from raydr.artefacts.corpus import declare_corpus
from raydr.artefacts.dataset import declare_dataset
from raydr.artefacts.declaration import Node, artefact
from raydr.artefacts.run import Run, by_query, check_found
from raydr.console import prose, show_summary, show_table, warn
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.schema import read_parquet
from raydr.data.tables import of_queries, relevance_by_query
from raydr.distributed.parts import as_json, make_parts, scratch_parts, total_counts, write_contents, write_table
from raydr.distributed.pool import Pool
from raydr.errors import ConfigError, DataError
from raydr.evaluation.answer_match import AnswerMatcher, accuracy_values, answer_label, counts_for_answers
from raydr.evaluation.comparison import Comparison, MeasureSummary, as_rows, compare, summarize
from raydr.evaluation.config import EvaluateConfig
from raydr.evaluation.linking import GROUPINGS, GroupMean, accuracies, group_means, linking_measures, normalised
from raydr.evaluation.metrics import deepest_cutoff, parse_measures, score_queries
from raydr.pages.evaluation import (
    EvaluationResult,
    bar_plot,
    evaluation_page,
    group_rows,
    marks,
    measure_rows,
    transposed,
)
from raydr.store.artifact import Artifact, Building
from raydr.store.folder import Folder
from raydr.store.manifest import Part

SUMMARY, COMPARISONS, PICTURE, REPORT = "summary.json", "comparisons.json", "metrics.png", "report.html"
PER_QUERY = "per_query.parquet"

#: measure → query id → value.
Values = dict[str, dict[str, float]]

_VALUES = pa.schema(
    [("query_id", pa.string()), ("system", pa.string()), ("measure", pa.string()), ("value", pa.float64())]
)


def evaluation(context: Context, split: str, runs: Mapping[str, Node], label: str = "") -> Node:
    """Measures of runs, by the name of the system, and the paired tests of every two."""
    return evaluate.node(
        f"{context.place}{label or f'evaluate-{split}'}",
        dataset=declare_dataset(context),
        corpus=declare_corpus(context),
        runs=runs,
        systems=list(runs),
        settings=context.config.evaluate,
        split=split,
        seed=context.config.seed,
    )


@artefact("evaluation", version=3, rows=lambda of: of.dataset.rows(f"queries/{of.split}") * len(of.systems), moves=True)
def evaluate(
    making: Building,
    pool: Pool,
    dataset: Artifact,
    corpus: Artifact,
    runs: Mapping[str, Artifact],
    *,
    systems: Sequence[str] = (),
    settings: EvaluateConfig,
    split: str,
    seed: int,
) -> dict[str, Any]:
    """Evaluate one or more runs on the queries of a split, and compare every two of them.

    All queries with a judgment count (answer accuracy: all queries with an answer that the settings allow): those that
    a run has no passage for score 0 and are counted.

    Args:
        making: the artefact.
        pool: where parts of runs are scored.
        dataset: judgments and answers.
        corpus: the passages, for answer accuracy.
        runs: the runs, by the name of the system.
        systems: their names in the order of the report, which the key keeps.
        settings: the measures, and how their uncertainty is shown.
        split: the split.
        seed: of the resamplings.

    Returns:
        ``split``, ``systems``, and ``means``: of each measure, by system.

    Raises:
        ConfigError: there is no run.
        DataError: a run has no query of the split, ranks a passage twice, or names passages that the corpus has not.
    """
    if not runs:
        raise ConfigError("evaluate needs at least one run; make one with raydr search")
    wanted = max([deepest_cutoff(parse_measures(settings.scored_measures).values()), *settings.answer_cutoffs])
    for system, run in runs.items():
        _warn_if_shallow(wanted, system, run)
    # By number: the name of a system need not be one of a file.
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
    make_parts(values, pool, _score_part, calls, f"evaluate: {split}")
    counts = {system: total_counts(values, parts) for system, parts in names.items()}
    for system, counted in counts.items():
        check_found(Run(runs[system]), system, counted["in split"], split)
    if REPORT not in making.done:
        scored = {system: (list(parts), counts[system]["elsewhere"]) for system, parts in names.items()}
        provenance = list(making.identity.inputs.items())
        finish = (making.folder, values.folder, settings, seed, split, queries, scored, provenance)
        making.done.update(pool.run(_finish, *finish))
    means: dict[str, dict[str, float]] = {system: {} for system in runs}
    for row in making.folder.read_json(SUMMARY)["measures"]:
        means[row["system"]][row["measure"]] = row["mean"]
    return {"split": split, "systems": list(runs), "means": means}


def load_result(artifact: Artifact) -> EvaluationResult:
    """The figures of an ``evaluation`` artefact."""
    summary = artifact.read_json(SUMMARY)
    return EvaluationResult(
        split=summary["split"],
        confidence=summary["confidence"],
        summaries=[MeasureSummary(**row) for row in summary["measures"]],
        comparisons=[Comparison(**row) for row in artifact.read_json(COMPARISONS)],
        counts=summary["counts"],
        groups=[GroupMean(**row) for row in summary.get("groups", ())],
    )


def show(artifact: Artifact) -> None:
    """Print the measures of an ``evaluation``, a warning for queries without results, and where it is."""
    result = load_result(artifact)
    # Intervals of more systems are on the page: they would be broken at 80 columns.
    intervals = len(result.systems) <= 2
    columns, rows = measure_rows(result, intervals)
    title = f"{result.split}: mean" + f" [{result.confidence:.0%} bootstrap interval]" * intervals
    if len({row[1] for row in rows}) == 1:
        title += f" over {rows[0][1]} queries"
        columns, rows = [columns[0], *columns[2:]], [[row[0], *row[2:]] for row in rows]
    show_table(title, columns, rows)
    if result.comparisons:
        prose(marks(result))
    for system in result.systems if result.groups else ():
        show_table(f"{system} by category", *transposed(group_rows(result, system, of_partitions=False)))
    if absent := max((counts.get("judgments_not_in_corpus", 0) for counts in result.counts.values()), default=0):
        warn(f"{absent:,} judgments name passages that are not in the corpus: they count as not found")
    for system, counts in result.counts.items():
        if counts["without_results"]:
            warn(f"{system}: {counts['without_results']:,} queries of the split have no result and score 0")
        if strangers := counts["in_run_but_not_in_split"]:
            warn(f"{system}: {strangers:,} queries of the run are not in the split, and do not count")
    show_summary("evaluation", {"report": artifact.folder.path(REPORT), "per query": artifact.folder.path(PER_QUERY)})


def _warn_if_shallow(wanted: int, system: str, run: Artifact) -> None:
    """A run cut off before a measure's cut-off makes that measure too low."""
    depth = run.info.get("top_k")
    if depth is not None and depth < wanted:
        warn(
            f"{system}: the run holds {depth} passages a query, but a measure looks at the first {wanted} and will be "
            f"too low; search with search.top_k: {wanted}"
        )


def _score_part(
    folder: Folder, name: str, settings: EvaluateConfig, split: str, data: Dataset, corpus: Corpus, run: Run, part: str
) -> Mapping[str, Part]:
    """The values of the queries of one part of one run: a column a measure, null where it does not concern a query.

    Judged queries without results are added by :func:`_finish`.
    """
    ranking = {query_id: rows["passage_id"].to_pylist() for query_id, rows in by_query(run.part(part)).items()}
    query_ids = pa.array(list(ranking), type=pa.string())
    qrels = relevance_by_query(of_queries(data.judgments(split), query_ids))
    values = score_queries(parse_measures(settings.scored_measures), qrels, ranking)
    queries = of_queries(data.queries(split), query_ids)
    if settings.answer_cutoffs:
        answered = _answer_values(settings, corpus, queries, ranking)
        labels = map(answer_label, settings.answer_cutoffs)
        values |= {
            label: {query_id: accuracies[label] for query_id, accuracies in answered.items()} for label in labels
        }
    columns = {
        label: pa.array(map(value_of_query.get, ranking), type=pa.float64()) for label, value_of_query in values.items()
    }
    counts = {"in split": queries.num_rows, "elsewhere": len(ranking) - queries.num_rows}
    return {name: write_table(folder, name, pa.table({"query_id": query_ids, **columns}), counts)}


def _answer_values(
    settings: EvaluateConfig, corpus: Corpus, queries: pa.Table, ranking: dict[str, list[str]]
) -> dict[str, dict[str, float]]:
    accuracies = {}
    for query_id, answers in _answers(settings, queries).items():
        matcher = AnswerMatcher(query_id, answers, settings.answer_match)
        texts = corpus.texts(corpus.rows_of(ranking[query_id][: max(settings.answer_cutoffs)])).texts
        accuracies[query_id] = accuracy_values(matcher.first_hit(texts), settings.answer_cutoffs)
    return accuracies


def _answers(settings: EvaluateConfig, queries: pa.Table) -> dict[str, list[str]]:
    columns = (queries["query_id"].to_pylist(), queries["answers"].to_pylist())
    return {
        query_id: answers
        for query_id, answers in zip(*columns, strict=True)
        if counts_for_answers(query_id, answers, settings.answer_query_prefixes)
    }


def _finish(
    folder: Folder,
    values: Folder,
    settings: EvaluateConfig,
    seed: int,
    split: str,
    data: Dataset,
    scored: Mapping[str, tuple[list[str], int]],
    provenance: list[tuple[str, str]],
) -> Mapping[str, Part]:
    """Put the parts of each system together, fill in queries without results, and write everything.

    ``scored`` has the parts of each system, and how many queries of its run the split has not.
    """
    judged = pc.unique(data.judgments(split)["query_id"]).to_pylist()
    absent = data.absent(split).num_rows
    answered = list(_answers(settings, data.queries(split))) if settings.answer_cutoffs else []
    if not judged and not answered:
        raise DataError(
            f"split {split!r} of the data set at {data.artifact.folder} has no judgments, and no query's answers count "
            "(evaluate.answer_cutoffs, evaluate.answer_query_prefixes): there is nothing to evaluate"
        )
    expected = dict.fromkeys(parse_measures(settings.measures), judged)
    if answered:
        expected |= {answer_label(cutoff): answered for cutoff in settings.answer_cutoffs}
    worlds = _groups(data.queries(split), judged)
    per_query: dict[str, Values] = {}
    groups: list[GroupMean] = []
    counts: dict[str, dict[str, int]] = {}
    for system, (names, elsewhere) in scored.items():
        table = pa.concat_tables([read_parquet(values.localize(name)) for name in names])
        per_query[system] = {label: _filled(label, ids, table) for label, ids in expected.items()}
        further: Values = {}
        if settings.linking_depth:
            first, among = (
                _filled(label, judged, table) for label in parse_measures(linking_measures(settings.linking_depth))
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
            **({"judgments_not_in_corpus": absent} if absent else {}),
        }
    summaries, comparisons = summarize(per_query, settings, seed), compare(per_query, settings, seed, every_pair=True)
    result = EvaluationResult(split, settings.confidence, summaries, comparisons, counts, groups)
    picture = bar_plot(result)
    summary = {
        "split": split,
        "confidence": settings.confidence,
        "measures": as_rows(result.summaries),
        "counts": counts,
        **({"groups": as_rows(groups)} if groups else {}),
    }
    contents: dict[str, bytes | str] = {
        SUMMARY: as_json(summary),
        COMPARISONS: as_json(as_rows(result.comparisons)),
        PICTURE: picture,
        REPORT: evaluation_page(result, picture, provenance),
    }
    return {PER_QUERY: write_table(folder, PER_QUERY, _per_query_table(per_query))} | write_contents(folder, contents)


def _groups(queries: pa.Table, judged: Sequence[str]) -> dict[str, dict[str, str]]:
    """The partition and the category of each judged query, where the data set tells them."""
    queries = of_queries(queries, judged)
    ids = queries["query_id"].to_pylist()
    return {
        name: dict(zip(ids, queries[name].fill_null("none").to_pylist(), strict=True))
        for name in GROUPINGS
        if queries[name].null_count < len(queries)
    }


def _per_query_table(per_query: dict[str, Values]) -> pa.Table:
    rows = [
        (query_id, system, label, value)
        for system, measures in per_query.items()
        for label, values in measures.items()
        for query_id, value in values.items()
    ]
    columns = zip(zip(*rows, strict=True), _VALUES.types, strict=True)
    return pa.Table.from_arrays([pa.array(column, type=kind) for column, kind in columns], schema=_VALUES)


def _filled(label: str, query_ids: Sequence[str], scored: pa.Table) -> dict[str, float]:
    """The value of each query, in their order; 0 where the run has no result."""
    scores = zip(scored["query_id"].to_pylist(), scored[label].to_pylist(), strict=True)
    return dict.fromkeys(query_ids, 0.0) | {query_id: value for query_id, value in scores if value is not None}
