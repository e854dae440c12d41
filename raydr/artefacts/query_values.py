"""Values of single queries: scores of a run's parts, values of missing queries, subsets of queries."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa

from raydr.artefacts.folds import SplitPairs
from raydr.artefacts.run import Run, by_query
from raydr.data import Corpus, Dataset
from raydr.data.tables import of_queries, relevance_by_query
from raydr.distributed.parts import write_table
from raydr.evaluation.answer_match import AnswerMatcher, accuracy_values, answer_label, counts_for_answers
from raydr.evaluation.config import EvaluateConfig
from raydr.evaluation.linking import ACCURACY, GROUPINGS, MACRO_ACCURACY, accuracies
from raydr.evaluation.metrics import parse_measures, score_queries
from raydr.noise.verdict_report import flagged_queries, read_actions
from raydr.store import Artifact, Folder, Part

#: measure → query id → value.
Values = dict[str, dict[str, float]]


def score_part(
    folder: Folder, name: str, settings: EvaluateConfig, split: str, data: Dataset, corpus: Corpus, run: Run, part: str
) -> Mapping[str, Part]:
    """Score the queries of a part of a run: a column for each measure, null where undefined.

    :func:`fill_in` adds judged queries without results.
    """
    ranking = {query_id: rows["passage_id"].to_pylist() for query_id, rows in by_query(run.part(part)).items()}
    query_ids = pa.array(list(ranking), type=pa.string())
    qrels = relevance_by_query(of_queries(data.judgments(split), query_ids))
    values = score_queries(parse_measures(settings.scored_measures), qrels, ranking)
    queries, answered = of_queries(data.queries(split), query_ids), {}
    if settings.answer_cutoffs:
        answered = _answer_values(settings, corpus, queries, ranking)
        labels = map(answer_label, settings.answer_cutoffs)
        values |= {
            label: {query_id: accuracies[label] for query_id, accuracies in answered.items()} for label in labels
        }
    columns = {
        label: pa.array(map(value_of_query.get, ranking), type=pa.float64()) for label, value_of_query in values.items()
    }
    counts = {"in split": queries.num_rows, "elsewhere": len(ranking) - queries.num_rows, "answered": len(answered)}
    return {name: write_table(folder, name, pa.table({"query_id": query_ids, **columns}), counts)}


def _answer_values(
    settings: EvaluateConfig, corpus: Corpus, queries: pa.Table, ranking: dict[str, list[str]]
) -> dict[str, dict[str, float]]:
    accuracies = {}
    for query_id, answers in answered_queries(settings, queries).items():
        matcher = AnswerMatcher(query_id, answers, settings.answer_match)
        texts = corpus.texts_of_run(ranking[query_id][: max(settings.answer_cutoffs)]).texts
        accuracies[query_id] = accuracy_values(matcher.first_hit(texts), settings.answer_cutoffs)
    return accuracies


def answered_queries(settings: EvaluateConfig, queries: pa.Table) -> dict[str, list[str]]:
    columns = (queries["query_id"].to_pylist(), queries["answers"].to_pylist())
    return {
        query_id: answers
        for query_id, answers in zip(*columns, strict=True)
        if counts_for_answers(query_id, answers, settings.answer_query_prefixes)
    }


def group_queries(queries: pa.Table, judged: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the partition and category of each judged query, if the data set has them."""
    queries = of_queries(queries, judged)
    ids = queries["query_id"].to_pylist()
    return {
        name: dict(zip(ids, queries[name].fill_null("none").to_pylist(), strict=True))
        for name in GROUPINGS
        if queries[name].null_count < len(queries)
    }


def fill_in(label: str, query_ids: Sequence[str], scored: pa.Table) -> dict[str, float]:
    """Return the value of each query, in order; 0 without a result in the run."""
    scores = zip(scored["query_id"].to_pylist(), scored[label].to_pylist(), strict=True)
    return dict.fromkeys(query_ids, 0.0) | {query_id: value for query_id, value in scores if value is not None}


def not_flagged(suspects: Artifact, split: str, judged: Sequence[str]) -> list[str]:
    """Return the queries without a flagged annotated pair.

    Args:
        suspects: ``verdicts`` on the pairs of the split.
        split: evaluated split.
        judged: queries with a judgment.
    """
    flagged = flagged_queries(read_actions(suspects, split))
    return [query_id for query_id in judged if query_id not in flagged]


def not_trained_on(data: Dataset, corpus: Corpus, split: str, train_split: str) -> list[str]:
    """Return the queries that share no positive, by content, with a training query.

    Returns:
        Ids of the queries; empty if the data set has no training split.
    """
    if train_split not in data.splits or train_split == split:
        return []
    pairs = SplitPairs.of(data, corpus, split)
    is_known_N = np.isin(pairs.content_N, SplitPairs.of(data, corpus, train_split).content_N)
    known = set(pairs.qrels["query_id"].filter(pa.array(is_known_N)).to_pylist())
    return [query_id for query_id in dict.fromkeys(pairs.qrels["query_id"].to_pylist()) if query_id not in known]


def restrict(per_query: Mapping[str, Values], queries: Collection[str], worlds: Mapping[str, str]) -> dict[str, Values]:
    """Return the values of some queries, without measures undefined for all of them.

    ``worlds`` holds the world of each query: values of the macro mean depend on the number of queries of each.
    """
    wanted = set(queries)
    restricted = {
        system: {
            label: some
            for label, values in measures.items()
            if (some := {query_id: value for query_id, value in values.items() if query_id in wanted})
        }
        for system, measures in per_query.items()
    }
    return {
        system: measures | (accuracies(measures[ACCURACY], worlds) if MACRO_ACCURACY in measures else {})
        for system, measures in restricted.items()
    }
