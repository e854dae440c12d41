"""Evidence for the checks: arrays that are measured once, on samples of queries; statistics and 95 % intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raydr.evaluation.significance import Interval, bootstrap_intervals

CONFIDENCE = 0.95
_SAMPLES = 2_000


def share_of(hits: ArrayLike) -> Interval:
    """Return the share of hits with Wilson's interval; [0, 1] without data.

    >>> [round(end, 3) for end in share_of([True] * 10 + [False] * 90)]
    [0.1, 0.055, 0.174]
    """
    # SciPy's statistics are slow to import.
    from scipy.stats import binomtest

    hit_N = np.asarray(hits, dtype=bool)
    if not len(hit_N):
        return Interval(0.0, 0.0, 1.0)
    interval = binomtest(int(hit_N.sum()), len(hit_N)).proportion_ci(CONFIDENCE, method="wilson")
    return Interval(float(hit_N.mean()), float(interval.low), float(interval.high))


def mean_of(values: ArrayLike) -> Interval:
    """Return the mean over queries with its bootstrap interval; paired if the values are differences."""
    [interval] = bootstrap_intervals(np.asarray(values, dtype=np.float64)[:, None], CONFIDENCE, _SAMPLES, seed=0)
    return interval


FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
#: Readers: BM25, BM25 on truncated texts, the model before and after training, and a model of another fold.
BM25, BM25_CUT, UNTRAINED, TRAINED, CROSS_FITTED = "bm25", "bm25, texts cut", "untrained", "trained", "cross-fitted"


@dataclass(frozen=True)
class Lengths:
    """Token counts of the texts of a side.

    Args:
        tokens_N: tokens of each sampled text, before truncation.
        max_length: truncation length.
    """

    tokens_N: NDArray[np.int64]
    max_length: int

    @property
    def share_cut(self) -> float:
        """Share of all tokens that truncation removes."""
        return float(np.maximum(self.tokens_N - self.max_length, 0).sum() / max(1, self.tokens_N.sum()))

    @property
    def fitting(self) -> int:
        """Length that fits 95 % of the texts."""
        return int(np.quantile(self.tokens_N, 0.95, method="inverted_cdf")) if len(self.tokens_N) else 0


@dataclass(frozen=True)
class Evidence:
    """Measurements of a training; empty fields were not measured.

    Args:
        split: held-out split of the measures.
        num_ranked: number of searched passages.
        num_passages: number of passages in the corpus.
        held_out: RR@10 of each held-out query, by reader.
        training: RR@10 of training queries, untrained and trained.
        p_held_out, p_training: by reader, for each pair the share of other pairs' passages that score at least as high
            (ties at random); uniform for mismatched pairs. Only ``p_held_out`` has the trained reader.
        same_pairs: whether the held-out split was held out of the training pairs, and so shares their mistakes.
        other_kind: lower bound of the share of queries unlike those of the other split.
        similarities: by reader (Q, C), of each held-out query with its own passage, then with other passages up to the
            size of a batch.
        scale: factor of similarities in training.
        vectors_PD: passage vectors of the trained model.
        outscores: by reader, whether each hard negative drawn in training scores at least as high as its positive; only
            for queries whose pair looks right, without copies of the positive.
        leaked: by held-out split, whether each query is in the training split, verbatim or nearly.
        unanswered: by split, whether each query has no positive in the corpus.
        repeated: by kind, whether each item has a copy that counts as wrong.
        lengths: token counts of each side.
        losses, dev: loss and dev measure of each epoch.
        num_steps: number of steps of the whole training.
        learning_rate: maximum of the learning rate.
        weight_size: root mean square of the weight matrices before training.
    """

    split: str = ""
    num_ranked: int = 0
    num_passages: int = 0
    held_out: Mapping[str, FloatArray] = field(default_factory=dict)
    training: Mapping[str, FloatArray] = field(default_factory=dict)
    p_held_out: Mapping[str, FloatArray] = field(default_factory=dict)
    p_training: Mapping[str, FloatArray] = field(default_factory=dict)
    same_pairs: bool = False
    other_kind: float = 0.0
    similarities: Mapping[str, FloatArray] = field(default_factory=dict)
    scale: float = 1.0
    vectors_PD: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    outscores: Mapping[str, BoolArray] = field(default_factory=dict)
    leaked: Mapping[str, BoolArray] = field(default_factory=dict)
    unanswered: Mapping[str, BoolArray] = field(default_factory=dict)
    repeated: Mapping[str, BoolArray] = field(default_factory=dict)
    lengths: Mapping[str, Lengths] = field(default_factory=dict)
    losses: tuple[float, ...] = ()
    dev: tuple[float, ...] = ()
    num_steps: int = 0
    learning_rate: float = 0.0
    weight_size: float = 1.0

    @property
    def is_loss_reached(self) -> bool:
        """Whether the loss has at least halved."""
        return len(self.losses) > 1 and self.losses[-1] < self.losses[0] / 2

    @property
    def step_size(self) -> float:
        """Maximum change of a weight in an AdamW step, relative to the weights: learning rate / weight size."""
        return self.learning_rate / self.weight_size


#: Share of the possible gain below which, with 97.5 % confidence, a training has learnt nothing.
_LITTLE = 0.1


@dataclass(frozen=True)
class Progress:
    """RR@10 of queries before training, and its gain.

    Args:
        before: mean of the untrained model.
        gain: paired gain by training.
    """

    before: float
    gain: Interval

    @classmethod
    def of(cls, ranks: Mapping[str, FloatArray]) -> Progress | None:
        """Compute the progress from RR@10 by reader; None if it was not measured."""
        if TRAINED not in ranks or UNTRAINED not in ranks:
            return None
        before = ranks[UNTRAINED]
        return cls(float(before.mean()), mean_of(ranks[TRAINED] - before))

    @property
    def left(self) -> float:
        """Lower bound of the remaining possible gain if almost nothing was learnt; else 0."""
        room = 1.0 - self.before
        return room - self.gain.high if 0.0 <= self.gain.high <= _LITTLE * room else 0.0

    @property
    def lost(self) -> float:
        """Lower bound of the lost share of the untrained model's result."""
        return max(0.0, -self.gain.high) / max(self.before, 1e-9)

    @property
    def after(self) -> float:
        """Mean of the trained model."""
        return self.before + self.gain.mean

    def __str__(self) -> str:
        return f"RR@10 of training queries {self.before:.3f} -> {self.after:.3f}"


_CUTOFF = 10


def reciprocal_ranks(scores_QP: FloatArray, positive_QP: BoolArray) -> FloatArray:
    """Compute RR@10 of the best positive, shape (Q,); ties have their mean rank.

    A model with equal scores thus retrieves nothing, whatever the order. Excluded passages have score −inf.

    >>> scores_QP = np.array([[3.0, 2.0, 1.0], [1.0, 1.0, 1.0]])
    >>> reciprocal_ranks(scores_QP, np.array([[False, True, False], [True, False, False]])).tolist()
    [0.5, 0.5]
    """
    best_Q1 = np.where(positive_QP, scores_QP, -np.inf).max(axis=1, keepdims=True)
    others_QP = np.where(positive_QP, -np.inf, scores_QP)
    rank_Q = 1.0 + (others_QP > best_Q1).sum(axis=1) + 0.5 * (others_QP == best_Q1).sum(axis=1)
    hit_Q = (rank_Q <= _CUTOFF) & (best_Q1[:, 0] > -np.inf)
    return np.where(hit_Q, 1.0 / rank_Q, 0.0)


def pair_p_values(
    scores_QP: FloatArray, pair_Q: NDArray[np.int64], null_QP: BoolArray, rng: np.random.Generator
) -> FloatArray:
    """Compute the share of other passages that score at least as high as a query's own, with random ties, shape (Q,).

    p = (#{null > pair} + U · (#{null = pair} + 1)) / (R + 1) with U uniform on (0, 1]: exactly uniform if the pair is
    exchangeable with R others.

    Args:
        scores_QP: scores of all passages.
        pair_Q: index of each query's own passage.
        null_QP: whether each query's own passage is compared with a passage.
        rng: random generator for ties.

    >>> scores_QP = np.array([[2.0, 1.0, 0.0]])
    >>> others_QP = np.array([[False, True, True]])
    >>> bool(pair_p_values(scores_QP, np.array([0]), others_QP, np.random.default_rng(0))[0] <= 1 / 3)
    True
    """
    own_Q1 = np.take_along_axis(scores_QP, pair_Q[:, None], axis=1)
    null_QP = null_QP & (scores_QP > -np.inf)
    above_Q = ((scores_QP > own_Q1) & null_QP).sum(axis=1)
    same_Q = ((scores_QP == own_Q1) & null_QP).sum(axis=1)
    num_Q = null_QP.sum(axis=1)
    return np.asarray((above_Q + (1.0 - rng.uniform(size=len(own_Q1))) * (same_Q + 1)) / (num_Q + 1))


def leaning(scores_QU: FloatArray, own_QU: BoolArray, here_U: BoolArray, there_U: BoolArray) -> FloatArray:
    """Compute the mean score of the passages ``here``, without the query's own, less that of those ``there``, (Q,).

    It does not depend on the pairing: queries of mismatched and right pairs lean alike, queries of another kind do not.

    >>> scores_QU = np.array([[9.0, 3.0, 1.0]])
    >>> leaning(scores_QU, scores_QU == 9.0, scores_QU[0] >= 3.0, scores_QU[0] == 1.0).tolist()
    [2.0]
    """
    counted_QU = here_U & ~own_QU
    sums_Q = np.where(counted_QU, scores_QU, 0.0).sum(axis=1)
    here_Q = sums_Q / np.maximum(counted_QU.sum(axis=1), 1)
    return np.asarray(here_Q - scores_QU[:, there_U].mean(axis=1))


def apart(some: FloatArray, others: FloatArray) -> float:
    """Return a lower bound of the share by which two samples differ in distribution.

    It is the Kolmogorov-Smirnov distance, a lower bound of the total variation, less its 95 % quantile for equal
    distributions, 1.36 · √((n + m) / nm).

    >>> apart(np.arange(200.0), np.arange(200.0) + 0.5), round(apart(np.arange(200.0), np.arange(200.0) + 200), 3)
    (0.0, 0.864)
    """
    from scipy.stats import ks_2samp

    num, other = len(some), len(others)
    if not num or not other:
        return 0.0
    distance = float(ks_2samp(some, others, method="asymp").statistic)
    return float(max(0.0, distance - 1.36 * np.sqrt((num + other) / (num * other))))


def beside_others(
    scores_QP: FloatArray, pair_Q: NDArray[np.int64], null_QP: BoolArray, num: int, rng: np.random.Generator
) -> FloatArray:
    """Return the scores of each query's own passage, then of random other passages, shape (Q, 1 + C).

    C is at most ``num``, the size of a batch, and the median number of other passages; queries with fewer are omitted.
    """
    null_QP = null_QP & (scores_QP > -np.inf)
    width = min(num, int(np.median(null_QP.sum(axis=1)))) if len(scores_QP) else 0
    usable_Q = (null_QP.sum(axis=1) >= width) & (width > 0)
    keys_QP = np.where(null_QP, rng.uniform(size=null_QP.shape), np.inf)[usable_Q]
    drawn_QC = np.argsort(keys_QP, axis=1)[:, :width]
    own_Q1 = np.take_along_axis(scores_QP[usable_Q], pair_Q[usable_Q, None], axis=1)
    return np.concatenate([own_Q1, np.take_along_axis(scores_QP[usable_Q], drawn_QC, axis=1)], axis=1)
