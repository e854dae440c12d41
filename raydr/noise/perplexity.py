"""How surprising an annotated pair is to the current retriever."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from raydr.errors import DataError

FloatArray = npt.NDArray[np.float64]


def perplexities(positive_scores_N: npt.ArrayLike, random_scores_NM: npt.ArrayLike) -> FloatArray:
    """Perplexity of N training pairs against M random passages each.

    PPL(q, p⁺) = −log( e^{s⁺} / (e^{s⁺} + Σ_{j=1..M} e^{s_j}) ) = log(1 + e^{logsumexp(s) − s⁺}), near 0 for a sure
    pair. The random passages are positives of other pairs, never hard negatives: against those a right pair looks
    wrong. A random passage that must not count for a pair (a known positive) has score −inf. Give each pair the same M.

    Source: Zhang et al. (EMNLP Findings 2023), PAPERS.md §4.

    Args:
        positive_scores_N: scale · sim(query, positive), shape (N,).
        random_scores_NM: scale · sim(query, random passage), shape (N, M).

    Returns:
        float64, shape (N,), all ≥ 0.

    >>> perplexities([2.0, 0.0], [[2.0, -np.inf], [5.0, 0.0]]).round(3).tolist()
    [0.693, 5.013]
    """
    positive_N = np.asarray(positive_scores_N, dtype=np.float64)
    random_NM = np.asarray(random_scores_NM, dtype=np.float64)
    if positive_N.ndim != 1 or random_NM.ndim != 2 or len(positive_N) != len(random_NM) or random_NM.shape[1] == 0:
        raise DataError(
            f"perplexity needs positive scores of shape (N,) and random scores of shape (N, M >= 1); "
            f"got {positive_N.shape} and {random_NM.shape}"
        )
    unusable_N = ~np.isfinite(positive_N) | np.isnan(random_NM).any(axis=1) | (random_NM.max(axis=1) == np.inf)
    if unusable_N.any():
        row = int(unusable_N.argmax())
        raise DataError(
            f"scores of pair {row} are not usable for a perplexity (NaN or infinite): positive {positive_N[row]}, "
            f"random {random_NM[row]}; {int(unusable_N.sum())} such pairs in all"
        )
    empty_N = (random_NM == -np.inf).all(axis=1)
    if empty_N.any():
        raise DataError(f"pair {int(empty_N.argmax())} has no random passage that counts; draw more random passages")
    total_N: FloatArray = np.logaddexp.reduce(random_NM, axis=1)
    return np.logaddexp(0.0, total_N - positive_N)
