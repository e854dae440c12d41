"""How much less a retriever scores a pair than random passages: the perplexity of NPC, and a difference of means."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raydr.errors import DataError

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Perplexities:
    """Perplexities of N training pairs and of N random pairs.

    Args:
        pairs_N: perplexity of each query with its annotated positive.
        random_N: perplexity of each query with a random passage; NaN where there are too few passages, see
            :func:`random_pair_perplexities`.
    """

    pairs_N: FloatArray
    random_N: FloatArray


def perplexities(positive_scores_N: npt.ArrayLike, random_scores_NM: npt.ArrayLike) -> FloatArray:
    """Compute the perplexity of N training pairs against M random passages each.

    PPL(q, p⁺) = −log( e^{s⁺} / (e^{s⁺} + Σ_{j=1..M} e^{s_j}) ) = log(1 + e^{logsumexp(s) − s⁺}), near 0 for a sure
    pair. The random passages are positives of other pairs, never hard negatives, against which a right pair looks
    wrong. A random passage that must not count (a known positive) has score −inf. All pairs need the same M.

    Source: Zhang et al. (EMNLP Findings 2023).

    Args:
        positive_scores_N: scale · sim(query, positive), shape (N,).
        random_scores_NM: scale · sim(query, random passage), shape (N, M).

    Returns:
        float64, shape (N,), all ≥ 0.

    >>> perplexities([2.0, 0.0], [[2.0, -np.inf], [5.0, 0.0]]).round(3).tolist()
    [0.693, 5.013]
    """
    positive_N, random_NM = _checked(positive_scores_N, random_scores_NM)
    empty_N = (random_NM == -np.inf).all(axis=1)
    if empty_N.any():
        raise DataError(f"pair {int(empty_N.argmax())} has no random passage that counts; draw more random passages")
    total_N: FloatArray = np.logaddexp.reduce(random_NM, axis=1)
    return np.logaddexp(0.0, total_N - positive_N)


def _checked(positive_scores_N: npt.ArrayLike, random_scores_NM: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    positive_N = np.asarray(positive_scores_N, dtype=np.float64)
    random_NM = np.asarray(random_scores_NM, dtype=np.float64)
    if positive_N.ndim != 1 or random_NM.ndim != 2 or len(positive_N) != len(random_NM) or random_NM.shape[1] == 0:
        raise DataError(
            f"pairs need positive scores of shape (N,) and random scores of shape (N, M >= 1); "
            f"got {positive_N.shape} and {random_NM.shape}"
        )
    unusable_N = ~np.isfinite(positive_N) | np.isnan(random_NM).any(axis=1) | (random_NM.max(axis=1) == np.inf)
    if unusable_N.any():
        row = int(unusable_N.argmax())
        raise DataError(
            f"scores of pair {row} are not usable (NaN or infinite): positive {positive_N[row]}, "
            f"random {random_NM[row]}; {int(unusable_N.sum())} such pairs in all"
        )
    return positive_N, random_NM


def mean_perplexities(positive_scores_N: npt.ArrayLike, random_scores_NM: npt.ArrayLike) -> FloatArray:
    """Compare N pairs with the mean of M random passages each: log(1 + e^{mean_j s_j − s⁺}).

    The log-sum-exp of a perplexity is nearly the largest random score, which depends on the draw and on how common the
    query's topic is. The mean separates real mismatches better, random ones as well (docs/experiments/detectors.md).
    The soft-plus, which changes no order, lets the detectors read it as a perplexity.

    Args:
        positive_scores_N: scale · sim(query, positive), shape (N,).
        random_scores_NM: scale · sim(query, random passage), shape (N, M).

    Returns:
        float64, shape (N,), all ≥ 0.

    >>> mean_perplexities([2.0, 0.0], [[2.0, 2.0], [6.0, 0.0]]).round(3).tolist()
    [0.693, 3.049]
    """
    positive_N, random_NM = _checked(positive_scores_N, random_scores_NM)
    return np.asarray(np.logaddexp(0.0, random_NM.mean(axis=1) - positive_N))


def random_pair_perplexities(random_scores_NM: npt.ArrayLike, column_N: npt.ArrayLike) -> FloatArray:
    """Compute the perplexity of N queries with a random passage each, as of a mismatched pair.

    A random passage takes the positive's place, the others stay: PPL = log(1 + e^{logsumexp(the others) − s}).

    Args:
        random_scores_NM: as for :func:`perplexities`; −inf where a passage must not count.
        column_N: index of that passage, modulo the number of passages that count.

    Returns:
        float64, shape (N,), NaN for queries with fewer than two passages that count.

    >>> random_pair_perplexities([[-np.inf, 2.0, 2.0], [1.0, -np.inf, -np.inf]], [0, 0]).round(3).tolist()
    [0.693, nan]
    """
    random_NM = np.asarray(random_scores_NM, dtype=np.float64)
    counts_NM = random_NM > -np.inf
    num_N = counts_NM.sum(axis=1)
    place_N = np.asarray(column_N) % np.maximum(num_N, 1)
    # First column whose cumulative count exceeds the index.
    chosen_N = (counts_NM.cumsum(axis=1) > place_N[:, None]).argmax(axis=1)
    perplexity_N = np.full(len(random_NM), np.nan)
    row_R = np.flatnonzero(num_N > 1)
    chosen_R = chosen_N[row_R]
    others_RM = random_NM[row_R]
    others_RM[np.arange(len(row_R)), chosen_R] = -np.inf
    # logsumexp(all) − s would be 0 where the passage outscores all others by far.
    perplexity_N[row_R] = np.logaddexp(0.0, np.logaddexp.reduce(others_RM, axis=1) - random_NM[row_R, chosen_R])
    return perplexity_N
