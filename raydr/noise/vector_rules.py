"""Detection rules on the vectors of an untrained encoder, applied to a labelled set.

Judges of raydr have their default settings, other rules those of their authors. No setting is tuned on labels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from raydr.evaluation.noise_measures import MethodScores
from raydr.noise.judges.base import BoolArray, FloatArray, IntArray, ScoredCandidates, SuspicionJudge
from raydr.noise.judges.consistency import Consistency
from raydr.noise.judges.guide import Guide
from raydr.noise.judges.margin import Margin
from raydr.noise.judges.near_duplicate import NearDuplicate
from raydr.noise.judges.sieve import Sieve
from raydr.noise.margins import npc_margins

#: Maximum of similarities in memory at once: 64 MiB of float64.
_BLOCK_CELLS = 1 << 23
#: Number of folds of the two-class model.
_NUM_FOLDS = 5
#: Scale and number of random passages of NPC's margins.
_SCALE, _NUM_RANDOM = 20.0, 255


@dataclass(frozen=True)
class PairVectors:
    """Vectors of the N pairs of a labelled set, whose products are similarities.

    Args:
        query_QD, passage_PD: float32, vectors of the distinct texts.
        query_N, passage_N: rows of each pair.
        positive_Q: row of each query's annotated positive; None for the subject ``pairs``.
    """

    query_QD: NDArray[np.float32]
    passage_PD: NDArray[np.float32]
    query_N: IntArray
    passage_N: IntArray
    positive_Q: IntArray | None = None

    @property
    def similarity_N(self) -> FloatArray:
        return _products(self.query_QD[self.query_N], self.passage_PD[self.passage_N])


def judge_by_vectors(vectors: PairVectors, seed: int = 0) -> Iterator[MethodScores]:
    """Yield the result of each rule on the pairs, with its duration in seconds."""
    sign = -1.0 if vectors.positive_Q is None else 1.0
    yield _timed("cosine", lambda: (sign * vectors.similarity_N, None, None))
    yield _timed("csls", lambda: (sign * centred_similarity(vectors), None, None))
    yield _timed("self-confidence", lambda: self_confidence(vectors, seed))
    if vectors.positive_Q is None:
        yield _timed("perplexity", lambda: (margins_of_npc(vectors, seed), None, None))
        yield _timed("consistency", lambda: _consistency(vectors, seed))
        return
    judges = {"nv-retriever": Margin(), "gist": Guide(), "near_duplicate": NearDuplicate(), "sieve": Sieve()}
    for name, judge in judges.items():
        yield _timed(name, partial(_judge_candidates, vectors, judge))


def centred_similarity(vectors: PairVectors) -> FloatArray:
    """Compute 2 s(q, p) − mean over passages of s(q, ·) − mean over queries of s(·, p), shape (N,).

    The mean terms discount texts that are near to all others. The means are over the whole set, so that no number of
    neighbours has to be chosen.

    Source: Conneau et al. (ICLR 2018), CSLS, whose means are over the ten nearest neighbours.
    """
    query_QD, passage_PD = vectors.query_QD.astype(np.float64), vectors.passage_PD.astype(np.float64)
    query_mean_Q, passage_mean_P = query_QD @ passage_PD.mean(axis=0), passage_PD @ query_QD.mean(axis=0)
    means_N = query_mean_Q[vectors.query_N] + passage_mean_P[vectors.passage_N]
    return np.asarray(2.0 * vectors.similarity_N - means_N)


def self_confidence(vectors: PairVectors, seed: int) -> tuple[FloatArray, BoolArray, FloatArray]:
    """Compute 1 − p(label) by a two-class model, cross-fitted over queries.

    The model is a logistic regression over q ∘ p and |q − p|. For the subject ``pairs`` its classes are the pairs, and
    the same queries with a random passage each; for ``candidates`` the candidates, and the annotated positives. A pair
    is flagged if confident learning counts it in the other class. That class has at least its mean probability; if the
    pair's own class has so too, the other class is the likelier.

    Source: Northcutt et al. (JAIR 2021), confident learning; cleanlab's ``self_confidence``.

    Returns:
        Suspicion, flags, and the probability that the label is wrong, shape (N,) each.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold

    rng = np.random.default_rng(seed)
    if vectors.positive_Q is None:
        other_query_R, other_passage_R = vectors.query_N, rng.permutation(vectors.passage_N)
    else:
        other_query_R = np.unique(vectors.query_N)
        other_passage_R = vectors.positive_Q[other_query_R]
    query_M = np.concatenate([vectors.query_N, other_query_R])
    passage_M = np.concatenate([vectors.passage_N, other_passage_R])
    labelled_M = np.arange(len(query_M)) < len(vectors.query_N)
    left, right = vectors.query_QD[query_M], vectors.passage_PD[passage_M]
    features_MF = np.concatenate([left * right, np.abs(left - right)], axis=1)
    # Unit vectors of D numbers have products near 1/D; without rescaling, the penalty would hold all weights at 0.
    features_MF *= features_MF.shape[1] ** 0.5
    confidence_M = np.empty(len(query_M))
    num_folds = min(_NUM_FOLDS, len(np.unique(query_M)))
    for train, test in GroupKFold(num_folds).split(features_MF, groups=query_M):
        model = LogisticRegression(max_iter=200).fit(features_MF[train], labelled_M[train])
        confidence_M[test] = model.predict_proba(features_MF[test])[:, 1]
    confidence_N = confidence_M[labelled_M]
    least_labelled, least_other = confidence_N.mean(), (1.0 - confidence_M[~labelled_M]).mean()
    other_N = 1.0 - confidence_N
    flagged_N = (other_N >= least_other) & ((confidence_N < least_labelled) | (other_N > confidence_N))
    return other_N, flagged_N, other_N


def margins_of_npc(vectors: PairVectors, seed: int) -> FloatArray:
    """Compute NPC's margin of each pair to random passages of the set, at scale 20, shape (N,).

    Source: Zhang et al. (EMNLP Findings 2023), see :func:`raydr.noise.margins.npc_margins`.
    """
    margin_N, similarity_N = np.empty(len(vectors.query_N)), vectors.similarity_N
    for rows, scores_BR in _against_random(vectors, _NUM_RANDOM, seed):
        margin_N[rows] = npc_margins(_SCALE * similarity_N[rows], _SCALE * scores_BR)
    return margin_N


def _consistency(vectors: PairVectors, seed: int) -> tuple[FloatArray, BoolArray, None]:
    """Apply the judge ``consistency``, with its sample drawn from the set's passages."""
    judge, similarity_N = Consistency(), vectors.similarity_N
    rank_N, flagged_N = np.empty(len(vectors.query_N)), np.empty(len(vectors.query_N), dtype=np.bool_)
    for rows, scores_BR in _against_random(vectors, judge.num_random, seed):
        scores_BR = np.maximum(scores_BR, np.finfo(np.float64).min)
        offsets = np.arange(len(scores_BR) + 1) * scores_BR.shape[1]
        verdicts = judge.judge(ScoredCandidates(scores_BR.ravel(), offsets, similarity_N[rows]))
        rank_N[rows], flagged_N[rows] = verdicts.score, verdicts.action != "keep"
    return rank_N, flagged_N, None


def _against_random(vectors: PairVectors, num_random: int, seed: int) -> Iterator[tuple[slice, FloatArray]]:
    """Yield the similarities of some pairs' queries to R random passages, (B, R); −inf for their own passages."""
    sample_R = np.random.default_rng(seed).permutation(len(vectors.passage_PD))[:num_random]
    own_N = vectors.passage_N[np.argsort(vectors.query_N, kind="stable")]
    ends_Q = np.cumsum(np.bincount(vectors.query_N, minlength=len(vectors.query_QD)))
    block = max(1, _BLOCK_CELLS // len(sample_R))
    for start in range(0, len(vectors.query_N), block):
        rows = slice(start, start + block)
        query_B = vectors.query_N[rows]
        scores_BR = vectors.query_QD[query_B].astype(np.float64) @ vectors.passage_PD[sample_R].T
        for at, query in enumerate(query_B.tolist()):
            # Passages of the query's other pairs may be right too.
            own = own_N[ends_Q[query - 1] if query else 0 : ends_Q[query]]
            scores_BR[at, np.isin(sample_R, own)] = -np.inf
        yield rows, scores_BR


def _judge_candidates(vectors: PairVectors, judge: SuspicionJudge) -> tuple[FloatArray, BoolArray, None]:
    """Apply a judge of candidates."""
    assert vectors.positive_Q is not None
    order_N = np.argsort(vectors.query_N, kind="stable")
    num_queries = len(vectors.query_QD)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(vectors.query_N, minlength=num_queries))])
    positive_QD = vectors.passage_PD[vectors.positive_Q]
    positive_ND = positive_QD[vectors.query_N]
    itself_N = _products(positive_ND, positive_ND)
    likeness_N = _products(positive_ND, vectors.passage_PD[vectors.passage_N]) / itself_N
    candidates = ScoredCandidates(
        vectors.similarity_N[order_N], offsets, _products(vectors.query_QD, positive_QD), likeness_N[order_N]
    )
    verdicts = judge.judge(candidates)
    suspicion_N, flagged_N = np.empty(len(order_N)), np.empty(len(order_N), dtype=np.bool_)
    suspicion_N[order_N], flagged_N[order_N] = verdicts.score, verdicts.action != "keep"
    return suspicion_N, flagged_N, None


def _products(first_ND: NDArray[np.float32], second_ND: NDArray[np.float32]) -> FloatArray:
    return np.asarray(np.einsum("nd,nd->n", first_ND, second_ND, dtype=np.float64))


def _timed(name: str, judge: Callable[[], tuple[FloatArray, BoolArray | None, FloatArray | None]]) -> MethodScores:
    started = time.perf_counter()
    suspicion_N, flagged_N, probability_N = judge()
    return MethodScores(name, suspicion_N, flagged_N, probability_N, time.perf_counter() - started)
