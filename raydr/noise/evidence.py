"""Log-odds of wrong labels by a judge, from its probabilities or its scores."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from raydr.noise.judges.base import BoolArray, FloatArray

#: Minimum of a probability and of its complement, which keeps log-odds finite.
_SMALLEST = 1e-9


class Edge(NamedTuple):
    """Score at which a judge without probabilities starts to flag, and the standard deviation of its scores."""

    score: float
    spread: float

    @classmethod
    def of(cls, scores_N: FloatArray, flagged_N: BoolArray) -> Edge:
        """Compute the edge from all scores and flags of a judge."""
        scores_N = np.asarray(scores_N, dtype=np.float64)
        return cls(float(np.quantile(scores_N, 1.0 - flagged_N.mean())), float(scores_N.std()) or 1.0)


def evidence(
    scores_N: FloatArray, flagged_N: BoolArray, probability_N: FloatArray | None = None, edge: Edge | None = None
) -> FloatArray:
    """Return the judge's log-odds of a wrong label, shape (N,).

    Judges without probabilities get log-odds 0 at the edge, and 2 more for each standard deviation of their score.

    Args:
        scores_N: scores of the verdicts.
        flagged_N: whether each verdict flags.
        probability_N: probability of a wrong label; None if the judge has none.
        edge: edge of all verdicts; None computes it from these verdicts.

    >>> evidence(np.array([1.0, 3.0]), np.array([False, True])).tolist()
    [-2.0, 2.0]
    >>> evidence(np.array([1.0, 3.0]), np.array([False, True]), np.array([0.5, 1.0])).round(1).tolist()
    [0.0, 20.7]
    """
    if probability_N is not None:
        inside_N = np.clip(np.asarray(probability_N, dtype=np.float64), _SMALLEST, 1.0 - _SMALLEST)
        return np.asarray(np.log(inside_N) - np.log1p(-inside_N))
    edge = edge or Edge.of(scores_N, flagged_N)
    return np.asarray(2.0 * (np.asarray(scores_N, dtype=np.float64) - edge.score) / edge.spread)
