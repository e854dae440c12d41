"""Uncertainty of means over queries: bootstrap intervals, paired randomisation tests, Holm's correction.

Draws depend on the seed and on the order of queries, so callers sort by query id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

#: Cells of the largest intermediate matrix: 16 MiB of float64.
_BLOCK_CELLS = 1 << 21


class Interval(NamedTuple):
    """Mean over queries with its confidence interval, in the measure's unit."""

    mean: float
    low: float
    high: float


def bootstrap_means(values_QM: FloatArray, num_samples: int, seed: int) -> FloatArray:
    """Compute means over queries drawn with replacement, the same queries for each column.

    Args:
        values_QM: a row for each query, a column for each measure or difference.
        num_samples: number of samples.
        seed: seed of the draws.

    Returns:
        float64, shape (num_samples, columns).
    """
    num_queries = len(values_QM)
    rng = np.random.default_rng(seed)
    block = max(1, _BLOCK_CELLS // max(num_queries, 1))
    means = np.empty((num_samples, values_QM.shape[1]))
    for start in range(0, num_samples, block):
        size = min(block, num_samples - start)
        drawn = rng.integers(num_queries, size=(size, num_queries))
        offsets = np.arange(size)[:, None] * num_queries
        counts = np.bincount((drawn + offsets).ravel(), minlength=size * num_queries).reshape(size, num_queries)
        means[start : start + size] = counts @ values_QM / num_queries
    return means


def bootstrap_intervals(values_QM: FloatArray, confidence: float, num_samples: int, seed: int) -> list[Interval]:
    """Compute percentile bootstrap intervals of the column means.

    >>> values = np.repeat([[0.0], [1.0]], 50, axis=0)
    >>> interval = bootstrap_intervals(values, 0.95, 2000, seed=0)[0]
    >>> interval.mean, bool(0.38 < interval.low < 0.42), bool(0.58 < interval.high < 0.62)
    (0.5, True, True)
    """
    if len(values_QM) == 0:
        raise ValueError("an interval needs at least one query")
    means = bootstrap_means(values_QM, num_samples, seed)
    tail = (1 - confidence) / 2
    lows, highs = np.quantile(means, [tail, 1 - tail], axis=0)
    return [
        Interval(float(mean), float(low), float(high))
        for mean, low, high in zip(values_QM.mean(axis=0), lows, highs, strict=True)
    ]


def randomization_tests(differences_QC: FloatArray, num_permutations: int, seed: int) -> list[float]:
    """Compute two-sided p-values of the paired randomisation test: signs of the differences are flipped at random.

    If so few queries differ that all 2**Q sign patterns are at most ``num_permutations``, all are tried and the p-value
    is exact; else it is (1 + patterns at least as extreme) / (1 + num_permutations), with the same patterns for all
    columns.

    Args:
        differences_QC: a row for each query, a column for each comparison.
        num_permutations: largest number of patterns.
        seed: seed of the patterns.

    >>> randomization_tests(np.array([[1.0, 0.0]] * 4), 1000, seed=0)
    [0.125, 1.0]
    """
    # Sums that differ only by rounding count as equal.
    observed_C = np.abs(differences_QC.sum(axis=0)) - 1e-12 * np.abs(differences_QC).sum(axis=0)
    p_values = np.ones(len(observed_C))
    sampled = []
    for at, num in enumerate(np.count_nonzero(differences_QC, axis=0).tolist()):
        if num > 30 or 2**num > num_permutations:
            sampled.append(at)
            continue
        differing = differences_QC[differences_QC[:, at] != 0, at]
        patterns = (np.arange(2**num)[:, None] >> np.arange(num)) & 1
        p_values[at] = np.mean(np.abs((1 - 2 * patterns) @ differing) >= observed_C[at])
    if sampled:
        drawn_QC, rng = differences_QC[:, sampled], np.random.default_rng(seed)
        block = max(1, _BLOCK_CELLS // len(drawn_QC))
        extreme_C = np.zeros(len(sampled))
        for start in range(0, num_permutations, block):
            size = min(block, num_permutations - start)
            signs = 1.0 - 2.0 * rng.integers(2, size=(size, len(drawn_QC)), dtype=np.int8)
            extreme_C += np.sum(np.abs(signs @ drawn_QC) >= observed_C[sampled], axis=0)
        p_values[sampled] = (1 + extreme_C) / (1 + num_permutations)
    return [float(p) for p in p_values]


def holm(p_values: Sequence[float]) -> list[float]:
    """Apply Holm's step-down correction for multiple tests.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for step, at in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - step) * p_values[at]))
        adjusted[at] = highest
    return adjusted
