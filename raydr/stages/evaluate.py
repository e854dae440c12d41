"""Evaluation of runs: measures against the judgments, answer-in-passage accuracy, intervals, comparisons.

Artefact ``evaluation``::

    per_query.parquet     (query_id, system, measure, value)
    summary.json          means with intervals, by system and measure; counts of queries
    comparisons.json      every system against the first one
    metrics.png           bars with intervals
    report.html           all of it on one page

Each part of a run is scored in a task of its own with the judgments of its queries; one more task puts the values
together. The driver gets the means.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.schema import write_parquet
from raydr.errors import ConfigError, DataError
from raydr.evaluation.answer_match import AnswerMatcher, accuracy_values, answer_label, counts_for_answers
from raydr.evaluation.comparison import Comparison, MeasureSummary, Settings, as_rows, compare, summarize
from raydr.evaluation.config import EvaluateConfig
from raydr.evaluation.metrics import deepest_cutoff, parse_measures, score_queries
from raydr.pages.evaluation import (
    EvaluationResult,
    bar_plot,
    comparison_rows,
    count_rows,
    evaluation_page,
    measure_rows,
)
from raydr.runtime.console import say, show_summary, show_table, warn
from raydr.stages.runs import Run, by_query
from raydr.stages.tasks import fetch, wait_for
from raydr.store.artifact import Artifact, Identity, Part, begin
from raydr.store.folder import Folder, write_part

SUMMARY, COMPARISONS, PICTURE, REPORT = "summary.json", "comparisons.json", "metrics.png", "report.html"
PER_QUERY = "per_query.parquet"

#: measure → query id → value.
Values = dict[str, dict[str, float]]

_VALUES = pa.schema(
    [("query_id", pa.string()), ("system", pa.string()), ("measure", pa.string()), ("value", pa.float64())]
)


def evaluate(
    config: RunConfig,
    split: str,
    dataset: Folder,
    corpus: Folder,
    runs: dict[str, Folder],
    output: Folder,
    overwrite: bool = False,
    tables: bool = True,
) -> Artifact:
    """Evaluate one or more runs on the queries of a split; each is compared with the first.

    All queries with a judgment count (answer accuracy: all queries with an answer that the settings allow): those that
    a run has no passage for score 0 and are counted.

    Args:
        config: ``evaluate`` and ``seed`` are read.
        split: the split.
        dataset: judgments and answers.
        corpus: the passages, for answer accuracy.
        runs: the runs, by the name of the system; their order is the order of the report.
        output: where the artefact goes.
        overwrite: replace what is at ``output``.
        tables: print the means and comparisons.

    Raises:
        ConfigError: there is no run, or a measure is unknown.
        DataError: a run has no query of the split, ranks a passage twice, or names passages that the corpus has not.
    """
    import ray

    if not runs:
        raise ConfigError("evaluate needs at least one run; make one with raydr search")
    settings = config.evaluate
    parse_measures(settings.measures)
    data = Dataset.open(dataset)
    opened = {system: Run.open(run) for system, run in runs.items()}
    identity = Identity(
        kind="evaluation",
        config={"split": split, "seed": config.seed, "systems": list(runs), **settings.fingerprint_settings()},
        inputs={"dataset": data.fingerprint, "corpus": Corpus.open(corpus).fingerprint}
        | {f"run:{system}": run.fingerprint for system, run in opened.items()},
    )
    with begin(output, identity, overwrite) as state:
        if isinstance(state, Artifact):
            say(f"evaluation {output}: already there with the same fingerprint, reused")
            if tables:
                show(load_result(state))
            return state
        for system, run in opened.items():
            _warn_if_shallow(settings, system, run)
        score = ray.remote(num_cpus=1, num_returns=2)(_score_part)
        values: dict[str, list[Any]] = {system: [] for system in runs}
        system_of: dict[Any, str] = {}
        for system, run in opened.items():
            for name in run.part_names:
                scored, counted = score.remote(settings, split, dataset, corpus, runs[system], name)
                values[system].append(scored)
                system_of[counted] = system
        # The values stay in the object store; the counts come here, and failures with them.
        in_split, elsewhere = dict.fromkeys(runs, 0), dict.fromkeys(runs, 0)
        for counted in wait_for(list(system_of), f"evaluate: {split}", "parts"):
            known, unknown = fetch(counted)
            in_split[system_of[counted]] += known
            elsewhere[system_of[counted]] += unknown
        for system, known in in_split.items():
            if not known:
                raise DataError(
                    f"the run of {system!r} at {runs[system]} has no query of split {split!r}: "
                    "was it made for another split?"
                )
        finish = ray.remote(num_cpus=1)(_finish)
        parts = fetch(finish.remote(settings, config.seed, split, dataset, values, elsewhere, identity, output))
        state.done.update({name: Part.model_validate(part) for name, part in parts.items()})
        info = {"split": split, "systems": list(runs)}
        made = state.finish(info, run_config=config.model_dump(mode="json"))
    if tables:
        show(load_result(made))
    show_summary("evaluation", {"report": made.folder.path(REPORT), "per query": made.folder.path(PER_QUERY)})
    return made


def load_result(artifact: Artifact) -> EvaluationResult:
    """The figures of an ``evaluation`` artefact."""
    summary = artifact.folder.read_json(SUMMARY)
    return EvaluationResult(
        split=summary["split"],
        confidence=summary["confidence"],
        summaries=[MeasureSummary(**row) for row in summary["measures"]],
        comparisons=[Comparison(**row) for row in artifact.folder.read_json(COMPARISONS)],
        counts=summary["counts"],
    )


def show(result: EvaluationResult) -> None:
    """Print the tables, and a warning for queries without results."""
    columns, rows = measure_rows(result)
    show_table(f"{result.split}: mean [{result.confidence:.0%} bootstrap interval]", columns, rows)
    if result.comparisons:
        columns, rows = comparison_rows(result)
        show_table(f"against {result.comparisons[0].baseline} (paired randomisation test)", columns, rows)
    columns, rows = count_rows(result)
    show_table("queries", columns, rows)
    for system, counts in result.counts.items():
        if counts["without_results"]:
            warn(f"{system}: {counts['without_results']:,} queries of the split have no result and score 0")


def _warn_if_shallow(settings: EvaluateConfig, system: str, run: Run) -> None:
    """A run cut off before a measure's cut-off makes that measure too low."""
    depth = run.artifact.info.get("top_k")
    wanted = max([deepest_cutoff(parse_measures(settings.measures).values()), *settings.answer_cutoffs])
    if depth is not None and depth < wanted:
        warn(
            f"{system}: the run holds {depth} passages a query, but a measure looks at the first {wanted} and will be "
            f"too low; search with search.top_k: {wanted}"
        )


def _score_part(
    settings: EvaluateConfig, split: str, dataset: Folder, corpus: Folder, run: Folder, part: str
) -> tuple[tuple[Values, list[str]], tuple[int, int]]:
    """Values of the queries of one part of one run, its queries, and how many of them are of the split and are not.

    Judged queries without results are added by :func:`_finish`.
    """
    data = Dataset.open(dataset)
    ranked = by_query(Run.open(run).part(part))
    ranking = {query_id: rows["passage_id"].to_pylist() for query_id, rows in ranked.items()}
    query_ids = pa.array(list(ranking), type=pa.string())
    values = score_queries(parse_measures(settings.measures), _qrels(data, split, query_ids), ranking)
    queries = data.queries(split)
    queries = queries.filter(pc.is_in(queries["query_id"], value_set=query_ids))
    if settings.answer_cutoffs:
        answered = _answer_values(settings, Corpus.open(corpus), queries, ranking)
        values |= {
            answer_label(k): {q: one[answer_label(k)] for q, one in answered.items()} for k in settings.answer_cutoffs
        }
    return (values, list(ranking)), (queries.num_rows, len(ranking) - queries.num_rows)


def _qrels(data: Dataset, split: str, query_ids: pa.Array) -> dict[str, dict[str, int]]:
    table = data.qrels(split)
    found: dict[str, dict[str, int]] = {}
    for row in table.filter(pc.is_in(table["query_id"], value_set=query_ids)).to_pylist():
        found.setdefault(row["query_id"], {})[row["passage_id"]] = row["relevance"]
    return found


def _answer_values(
    settings: EvaluateConfig, corpus: Corpus, queries: pa.Table, ranking: dict[str, list[str]]
) -> dict[str, dict[str, float]]:
    found = {}
    for query_id, answers in _answers(settings, queries).items():
        matcher = AnswerMatcher(query_id, answers, settings.answer_match)
        texts = corpus.texts(corpus.rows_of(ranking[query_id][: max(settings.answer_cutoffs)])).texts
        found[query_id] = accuracy_values(matcher.first_hit(texts), settings.answer_cutoffs)
    return found


def _answers(settings: EvaluateConfig, queries: pa.Table) -> dict[str, list[str]]:
    columns = (queries["query_id"].to_pylist(), queries["answers"].to_pylist())
    return {
        query_id: answers
        for query_id, answers in zip(*columns, strict=True)
        if counts_for_answers(query_id, answers, settings.answer_query_prefixes)
    }


def _finish(
    settings: EvaluateConfig,
    seed: int,
    split: str,
    dataset: Folder,
    values: dict[str, list[Any]],
    elsewhere: dict[str, int],
    identity: Identity,
    output: Folder,
) -> dict[str, dict[str, Any]]:
    """Put the parts together, fill in queries without results, and write everything."""
    import ray

    data = Dataset.open(dataset)
    judged = pc.unique(data.qrels(split)["query_id"]).to_pylist()
    answered = list(_answers(settings, data.queries(split))) if settings.answer_cutoffs else []
    if not judged and not answered:
        raise DataError(
            f"split {split!r} of the data set at {dataset} has no judgments, and no query's answers count "
            "(evaluate.answer_cutoffs, evaluate.answer_query_prefixes): there is nothing to evaluate"
        )
    expected = dict.fromkeys(parse_measures(settings.measures), judged)
    if answered:
        expected |= {answer_label(cutoff): answered for cutoff in settings.answer_cutoffs}
    per_query: dict[str, Values] = {}
    counts: dict[str, dict[str, int]] = {}
    for system, references in values.items():
        scored: list[tuple[Values, list[str]]] = ray.get(references)
        parts = [part for part, _ in scored]
        per_query[system] = {label: _filled(label, ids, parts) for label, ids in expected.items()}
        with_results = {query_id for _, query_ids in scored for query_id in query_ids}
        counts[system] = {
            "judged": len(judged),
            "without_results": len({*judged, *answered} - with_results),
            "with_answers": len(answered),
            "in_run_but_not_in_split": elsewhere[system],
        }
    uncertainty = Settings(settings.confidence, settings.bootstrap_samples, settings.permutations, seed)
    result = EvaluationResult(
        split, settings.confidence, summarize(per_query, uncertainty), compare(per_query, uncertainty), counts
    )
    return _write(result, per_query, list(identity.inputs.items()), output)


def _filled(label: str, query_ids: Sequence[str], parts: list[Values]) -> dict[str, float]:
    values = dict.fromkeys(query_ids, 0.0)
    for part in parts:
        values.update(part.get(label, {}))
    return values


def _write(
    result: EvaluationResult,
    per_query: dict[str, Values],
    provenance: list[tuple[str, str]],
    output: Folder,
) -> dict[str, dict[str, Any]]:
    rows = [
        (query_id, system, label, value)
        for system, measures in per_query.items()
        for label, values in measures.items()
        for query_id, value in values.items()
    ]
    columns = [
        pa.array(column, type=field.type) for column, field in zip(zip(*rows, strict=True), _VALUES, strict=True)
    ]
    table = pa.Table.from_arrays(columns, schema=_VALUES)
    summary = {
        "split": result.split,
        "confidence": result.confidence,
        "measures": as_rows(result.summaries),
        "counts": result.counts,
    }
    picture = bar_plot(result)
    contents = {
        SUMMARY: _json(summary),
        COMPARISONS: _json(as_rows(result.comparisons)),
        PICTURE: picture,
        REPORT: evaluation_page(result, picture, provenance).encode("utf-8"),
    }
    parts = {PER_QUERY: write_part(output, PER_QUERY, table.num_rows, lambda path: write_parquet(table, path))}
    for name, content in contents.items():
        parts[name] = write_part(output, name, 0, _writer(content))
    return parts


def _writer(content: bytes) -> Any:
    return lambda path: Path(path).write_bytes(content)


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")
