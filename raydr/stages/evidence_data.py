"""What is wrong with the data of a training by themselves: copies, leaks, queries that nothing answers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from raydr.data.leakage import find_copies, find_leaks
from raydr.data.tables import passages_by_query
from raydr.diagnosis.evidence import BoolArray
from raydr.stages.evidence_samples import DiagnosisJob, Sample

#: Passages among which near copies are looked for, at most: their words are held.
_COPIES_AMONG = 50_000


def copies(job: DiagnosisJob, sample: Sample) -> list[set[int]]:
    """Rows of passages that say the same as the first positive of each query, its own positives left out."""
    corpus, rows = job.corpus, sample.chosen.passage_rows
    among = np.arange(len(corpus))
    if len(among) > _COPIES_AMONG:
        among = np.union1d(job.rng("copies").choice(len(among), _COPIES_AMONG, replace=False), rows)
    alike = find_copies(job.texts(sample.pair_rows_Q), job.texts(among))
    contents_N = corpus.content_hashes(np.arange(len(corpus)))
    order = np.argsort(contents_N, kind="stable")
    mine_Q = corpus.content_hashes(sample.pair_rows_Q)
    starts, ends = (np.searchsorted(contents_N, mine_Q, side=side, sorter=order) for side in ("left", "right"))
    return [
        {*among[near].tolist(), *order[start:end].tolist()} - set(rows[positive_P].tolist())
        for near, start, end, positive_P in zip(alike, starts, ends, sample.positive_QP, strict=True)
    ]


def repeated_queries(job: DiagnosisJob) -> BoolArray:
    """Of each training query, whether another one says the same and has other positives alone."""
    queries, qrels = job.judged(job.training.train_split)
    positives = passages_by_query(qrels)
    answers = [frozenset(positives.get(query_id, ())) for query_id in queries["query_id"].to_pylist()]
    texts = queries["text"].to_pylist()
    alike = zip(answers, find_copies(texts, texts), strict=True)
    # A query without positives is no one's twin: it is unanswered.
    return np.array(
        [
            any(mine and answers[other] and answers[other].isdisjoint(mine) for other in others)
            for mine, others in alike
        ],
        dtype=bool,
    )


def leaked(job: DiagnosisJob) -> Mapping[str, BoolArray]:
    """By held-out split, whether each of its queries is trained on too."""
    trained_on = job.data.queries(job.training.train_split)["text"].to_pylist()
    texts = {one: job.data.queries(one)["text"].to_pylist() for one in job.held_out if one in job.data.splits}
    return {split: np.isin(np.arange(len(mine)), list(find_leaks(mine, trained_on))) for split, mine in texts.items()}


def unanswered(job: DiagnosisJob, split: str) -> BoolArray:
    """Of each query of a split, whether the corpus has no positive of it."""
    queries, qrels = job.judged(split)
    return ~np.isin(queries["query_id"].to_pylist(), qrels["query_id"].to_pylist())
