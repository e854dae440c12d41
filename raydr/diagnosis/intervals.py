"""95 % intervals of shares and of means over queries."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from raydr.evaluation.significance import Interval, bootstrap_intervals

CONFIDENCE = 0.95
_SAMPLES = 2_000


def share(hits: ArrayLike) -> Interval:
    """Return the share of hits with Wilson's interval; [0, 1] without data.

    >>> [round(end, 3) for end in share([True] * 10 + [False] * 90)]
    [0.1, 0.055, 0.174]
    """
    # SciPy's statistics are slow to import.
    from scipy.stats import binomtest

    hit_N = np.asarray(hits, dtype=bool)
    if not len(hit_N):
        return Interval(0.0, 0.0, 1.0)
    interval = binomtest(int(hit_N.sum()), len(hit_N)).proportion_ci(CONFIDENCE, method="wilson")
    return Interval(float(hit_N.mean()), float(interval.low), float(interval.high))


def mean(values: ArrayLike) -> Interval:
    """Return the mean over queries with its bootstrap interval; paired if the values are differences."""
    [interval] = bootstrap_intervals(np.asarray(values, dtype=np.float64)[:, None], CONFIDENCE, _SAMPLES, seed=0)
    return interval
