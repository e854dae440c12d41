"""Gather the evidence of a diagnosis: samples of training and held-out queries, scored by BM25 and the model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow.compute as pc

from raydr.artefacts.evidence_samples import (
    DiagnosisJob,
    IntArray,
    Reader,
    Sample,
    bm25,
    cut,
    dense,
    encoded,
    lengths,
    weight_size,
)
from raydr.artefacts.judged import DROPPED_PAIR
from raydr.data.examples import load_examples
from raydr.data.leakage import find_copies, find_leaks
from raydr.data.tables import of_queries, pairs_of, passages_by_query, relevant
from raydr.diagnosis.evidence import (
    BM25,
    BM25_CUT,
    CROSS_FITTED,
    TRAINED,
    UNTRAINED,
    BoolArray,
    Evidence,
    FloatArray,
    apart,
    beside_others,
    leaning,
    pair_p_values,
    reciprocal_ranks,
)
from raydr.models.config import SIDES
from raydr.models.pair_scoring import DualEncoderScorer
from raydr.negatives.samplers.base import CandidateList
from raydr.noise.detectors.local_fdr import p_values
from raydr.noise.margins import read_margins
from raydr.seeding import query_rng
from raydr.store import Artifact

#: Largest share of other passages that suit a right-looking pair's query as well.
_RIGHT = 0.1
_NONE = np.zeros((0, 0))


def gather(job: DiagnosisJob) -> Evidence:
    """Measure the evidence of all checks.

    Without a held-out split with judgments only the training split is measured.
    """
    train, split = job.training.train, job.training.train_split
    training = Sample.of(job, split)
    assert training is not None, "a model was trained on it"
    held_out = {split: sample for split in job.held_out if (sample := Sample.of(job, split)) is not None}
    name = next(iter(held_out), "")
    samples = {split: training} | ({name: held_out[name]} if name else {})
    alike = {split: copies(job, sample) for split, sample in samples.items()}
    query_C, row_C = _drawn(job, training) if train.num_hard_negatives else np.zeros((2, 0), dtype=np.int64)
    rows_U = np.unique(np.concatenate([*(sample.chosen.passage_rows for sample in samples.values()), row_C]))
    trained, untrained = job.trained.open_retriever(), job.untrained.open_retriever()
    vectors_UD, passages = encoded(trained, job.corpus, rows_U), job.texts(rows_U)
    readers: dict[str, Reader] = {
        BM25: bm25(job.bm25, passages),
        UNTRAINED: dense(untrained, encoded(untrained, job.corpus, rows_U)),
        TRAINED: dense(trained, vectors_UD),
    }
    scores_QU = {
        split: {reader: read(sample.chosen.query_texts) for reader, read in readers.items()}
        for split, sample in samples.items()
    }
    scores_QP = {
        split: {reader: samples[split].seen(scores, rows_U) for reader, scores in by_reader.items()}
        for split, by_reader in scores_QU.items()
    }
    rr = {
        split: {reader: reciprocal_ranks(scores, samples[split].positive_QP) for reader, scores in by_reader.items()}
        for split, by_reader in scores_QP.items()
    }
    p = {
        split: {
            reader: pair_p_values(by_reader[reader], samples[split].pair_Q, samples[split].null_QP, job.rng("ties"))
            for reader in readers
            if reader != TRAINED or split == name
        }
        for split, by_reader in scores_QP.items()
    }
    looked_at = samples.get(name, training)
    if name:
        of_cut = bm25(job.bm25, cut(trained.tokenizers["passage"], passages))
        queries = cut(trained.tokenizers["query"], looked_at.chosen.query_texts)
        rr[name][BM25_CUT] = reciprocal_ranks(looked_at.seen(of_cut(queries), rows_U), looked_at.positive_QP)
        if job.margins is not None and job.fold is not None:
            p[split][CROSS_FITTED] = _cross_fitted(job, job.margins)
            p[name][CROSS_FITTED] = _by_fold(job, job.fold.open_retriever(), looked_at)
    batch = train.batch_size // train.accumulation_steps
    history = [row["metrics"] for row in job.trained.model.info["history"]]
    return Evidence(
        split=name,
        num_ranked=len(looked_at.chosen.passage_ids),
        num_passages=len(job.corpus),
        held_out=rr.get(name, {}),
        training={reader: rr[split][reader] for reader in (UNTRAINED, TRAINED)},
        p_held_out=p.get(name, {}),
        p_training=p[split],
        same_pairs=name in job.hold_out,
        other_kind=_other_kind(training, looked_at, rows_U, *(scores_QU[split][UNTRAINED] for split in samples))
        if name
        else 0.0,
        similarities={
            reader: beside_others(scores, looked_at.pair_Q, looked_at.null_QP, batch - 1, job.rng("batch"))
            for reader, scores in scores_QP.get(name, {}).items()
            if reader != BM25
        },
        scale=job.training.model.scale,
        vectors_PD=vectors_UD.astype(np.float64) if vectors_UD.ndim == 2 else _NONE,
        outscores=_outscores(query_C, row_C, training, rows_U, scores_QU[split], p[split], alike[split]),
        leaked=leaked(job),
        unanswered={
            judged_split: unanswered(job, judged_split)
            for judged_split in (split, *job.held_out)
            if judged_split in job.data.splits
        },
        repeated={
            **{
                f"positives of {split}": np.array([bool(rows) for rows in positives])
                for split, positives in alike.items()
            },
            "training queries": repeated_queries(job),
        },
        lengths={side: lengths(job, side, looked_at) for side in SIDES},
        losses=tuple(row["loss"] for row in history),
        dev=tuple(row[key] for row in history if (key := f"dev {train.dev.measure}") in row),
        num_steps=job.trained.model.info["num_steps"] * len(history),
        learning_rate=train.optimizer.learning_rate,
        weight_size=weight_size(untrained),
    )


def _other_kind(
    training: Sample, held_out: Sample, rows_U: IntArray, of_training_QU: FloatArray, of_held_out_QU: FloatArray
) -> float:
    """Return a lower bound of the share of training queries unlike held-out ones, by the passages they lean to."""
    here_QU, there_QU = training.positive_among(rows_U), held_out.positive_among(rows_U)
    here_U, there_U = (np.asarray(judged_QU.any(axis=0)) for judged_QU in (here_QU, there_QU))
    return apart(leaning(of_training_QU, here_QU, here_U, there_U), -leaning(of_held_out_QU, there_QU, there_U, here_U))


def _cross_fitted(job: DiagnosisJob, margins: Artifact) -> FloatArray:
    """Return p of the training pairs by the model that has not seen each."""
    measured = read_margins(margins)
    p_N = np.empty(len(measured.fold_N))
    for fold in np.unique(measured.fold_N):
        mine_N = measured.fold_N == fold
        p_N[mine_N] = p_values(measured.margins_ND[mine_N, 0], measured.random_N[mine_N])
    trained_on = set(pairs_of(relevant(job.data.qrels(job.training.train_split))))
    pairs = zip(measured.query_ids.to_pylist(), measured.passage_ids.to_pylist(), strict=True)
    return np.asarray(p_N[np.array([pair in trained_on for pair in pairs], dtype=bool)])


def _by_fold(job: DiagnosisJob, scorer: DualEncoderScorer, held_out: Sample) -> FloatArray:
    """Return p of the held-out pairs by the model of a fold."""
    annotated_P = held_out.positive_QP.any(axis=0)
    vectors_AD = encoded(scorer, job.corpus, held_out.chosen.passage_rows[annotated_P])
    pair_Q = (np.cumsum(annotated_P) - 1)[held_out.pair_Q]
    scores_QA = dense(scorer, vectors_AD)(held_out.chosen.query_texts)
    return pair_p_values(scores_QA, pair_Q, held_out.null_QP[:, annotated_P], job.rng("ties"))


def _drawn(job: DiagnosisJob, training: Sample) -> IntArray:
    """Return indices of sampled queries and corpus rows of their first epoch's hard negatives, shape (2, C)."""
    split, ids, train = job.training.train_split, training.chosen.query_ids, job.training.train
    candidates = job.data.training_tables(split, job.negatives)[2]
    queries, qrels, candidates = (of_queries(table, ids) for table in (*job.judged(split), candidates))
    examples = load_examples(queries, qrels, candidates, job.corpus, job.training.scope)
    place = {query_id: at for at, query_id in enumerate(ids)}
    drawn = []
    for at, query_id in enumerate(examples.query_ids):
        score = float(examples.positive_scores[at])
        known = CandidateList(examples.scores[at], None if np.isnan(score) else score)
        rng = query_rng(job.training.seed, 0, query_id, "negatives")
        chosen = train.sampler.sample(known, train.num_hard_negatives, rng).indices
        drawn += [(place[query_id], int(row)) for row in examples.negatives[at][chosen]]
    return np.array(drawn, dtype=np.int64).reshape(-1, 2).T


def _outscores(
    query_C: IntArray,
    row_C: IntArray,
    training: Sample,
    rows_U: IntArray,
    scores_QU: Mapping[str, FloatArray],
    p: Mapping[str, FloatArray],
    alike: list[set[int]],
) -> dict[str, BoolArray]:
    """Return by reader whether each hard negative scores at least as high as its positive, for right-looking pairs."""
    right_Q = min((p[BM25], p[UNTRAINED]), key=lambda p_Q: float(p_Q.mean())) <= _RIGHT
    usable = [bool(right_Q[at]) and row not in alike[at] for at, row in zip(query_C, row_C.tolist(), strict=True)]
    query_C, row_C = query_C[np.array(usable, dtype=bool)], row_C[np.array(usable, dtype=bool)]
    own_C = np.searchsorted(rows_U, training.pair_rows_Q)[query_C]
    place_C = np.searchsorted(rows_U, row_C)
    return {reader: scores[query_C, place_C] >= scores[query_C, own_C] for reader, scores in scores_QU.items()}


#: Largest number of passages searched for near-copies, whose words are held in memory.
_COPIES_AMONG = 50_000


def copies(job: DiagnosisJob, sample: Sample) -> list[set[int]]:
    """Return the rows of copies of each query's first positive, without its other positives."""
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
    """Return whether each training query has a copy with only other positives."""
    queries, qrels = job.judged(job.training.train_split)
    positives = passages_by_query(qrels)
    answers = [frozenset(positives.get(query_id, ())) for query_id in queries["query_id"].to_pylist()]
    texts = queries["text"].to_pylist()
    alike = zip(answers, find_copies(texts, texts), strict=True)
    # A query without positives is unanswered, not repeated.
    return np.array(
        [
            any(mine and answers[other] and answers[other].isdisjoint(mine) for other in others)
            for mine, others in alike
        ],
        dtype=bool,
    )


def leaked(job: DiagnosisJob) -> Mapping[str, BoolArray]:
    """Return by held-out split whether each query is in the training split."""
    trained_on = job.data.queries(job.training.train_split)["text"].to_pylist()
    texts = {split: job.data.queries(split)["text"].to_pylist() for split in job.held_out if split in job.data.splits}
    return {split: np.isin(np.arange(len(mine)), list(find_leaks(mine, trained_on))) for split, mine in texts.items()}


def unanswered(job: DiagnosisJob, split: str) -> BoolArray:
    """Return whether each query of a split has no positive in the corpus; pairs that judges drop count."""
    queries, qrels = job.judged(split)
    dropped = job.data.dropped(split)
    dropped = dropped.filter(pc.equal(dropped["miner"], DROPPED_PAIR))
    answered = [*qrels["query_id"].to_pylist(), *dropped["query_id"].to_pylist()]
    return ~np.isin(queries["query_id"].to_pylist(), answered)
