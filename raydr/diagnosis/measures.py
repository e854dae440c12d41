"""Measures for the checks, from scores of queries with passages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raydr.diagnosis.evidence import BoolArray, FloatArray

_CUTOFF = 10


def reciprocal_ranks(scores_QP: FloatArray, positive_QP: BoolArray) -> FloatArray:
    """Compute RR@10 of the best positive, shape (Q,); ties get their mean rank.

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
        null_QP: passages that each is compared with.
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
    """Compute how much better the passages ``here`` suit each query than those ``there``, without its own, shape (Q,).

    The pairing has no influence: mismatched pairs lean like right ones, queries of another kind do not.

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
    """Return each query's own passage, then random others up to the size of a batch, shape (Q, C).

    Queries with too few others are omitted; C is the most that half of the queries have, at most ``num``.
    """
    null_QP = null_QP & (scores_QP > -np.inf)
    width = min(num, int(np.median(null_QP.sum(axis=1)))) if len(scores_QP) else 0
    usable_Q = (null_QP.sum(axis=1) >= width) & (width > 0)
    keys_QP = np.where(null_QP, rng.uniform(size=null_QP.shape), np.inf)[usable_Q]
    drawn_QC = np.argsort(keys_QP, axis=1)[:, :width]
    own_Q1 = np.take_along_axis(scores_QP[usable_Q], pair_Q[usable_Q, None], axis=1)
    return np.concatenate([own_Q1, np.take_along_axis(scores_QP[usable_Q], drawn_QC, axis=1)], axis=1)
