"""Measures of a method that detects wrong labels: of its ranking and its flags, with bootstrap intervals.

A bootstrap sample draws queries with all of their pairs. Samples depend only on queries and seed, so that all methods
on a set share them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from raydr.errors import DataError
from raydr.evaluation.significance import Interval

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

#: Measures of the ranking of all pairs by suspicion.
RANKING = ("AP", "P@R.5", "AUROC")
#: Measures of the flags: share of all pairs, precision, recall, and the excess of the mean probability of flagged pairs
#: over their share of wrong labels.
FLAGS = ("flagged", "precision", "recall", "calibration")

#: Cells of the largest intermediate matrix: 32 MiB of float64.
_BLOCK_CELLS = 1 << 22
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class MethodScores:
    """Output of a method on the N pairs of a set.

    Args:
        method: name of the method.
        suspicion_N: any scale; higher means that the label is more likely wrong.
        flagged_N: flags of the method; None if it only ranks.
        probability_N: P(wrong label); None if the method gives none.
        seconds: duration beyond what all methods share; None if it was not measured.
    """

    method: str
    suspicion_N: FloatArray
    flagged_N: BoolArray | None = None
    probability_N: FloatArray | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        shape = self.suspicion_N.shape
        for values in (self.flagged_N, self.probability_N):
            if values is not None and values.shape != shape:
                raise DataError(f"method {self.method}: {values.shape} flags or probabilities for {shape} suspicions")
        if not np.isfinite(self.suspicion_N).all():
            at = int((~np.isfinite(self.suspicion_N)).argmax())
            raise DataError(f"method {self.method}: the suspicion of pair {at} is {self.suspicion_N[at]}")


@dataclass(frozen=True)
class MethodFigures:
    """Measures of a method on a set.

    Args:
        method: name of the method.
        measures: values by name, see :data:`RANKING` and :data:`FLAGS`; undefined measures are left out.
        seconds: duration as in :class:`MethodScores`.
        flags_by_source: flagged share of each source.
    """

    method: str
    measures: dict[str, Interval]
    seconds: float | None = None
    flags_by_source: dict[str, Interval] = field(default_factory=dict)


def measure_ranking(wrong_N: BoolArray, suspicion_N: FloatArray, weight_SN: FloatArray) -> FloatArray:
    """Compute the measures of a ranking for S weightings of the pairs.

    Pairs of equal suspicion form one step, wholly above or below a threshold. AP is Σ precision · Δrecall; P@R.5 is the
    precision at the highest threshold with recall at least ½.

    Args:
        wrong_N: whether each label is wrong, the positive class.
        suspicion_N: suspicion of each pair.
        weight_SN: weight of each pair; a row with a single class has NaN for its measures.

    Returns:
        float64, shape (S, 3), in the order of :data:`RANKING`.

    >>> measure_ranking(np.array([True, True, False, False]), np.array([4.0, 2.0, 3.0, 1.0]), np.ones((1, 4))).round(3)
    array([[0.833, 1.   , 0.75 ]])
    """
    order_N = np.argsort(-suspicion_N, kind="stable")
    step_T = np.flatnonzero(np.append(np.diff(suspicion_N[order_N]) != 0.0, True))
    weight_SN, wrong_N = weight_SN[:, order_N], wrong_N[order_N]
    hits_ST = np.cumsum(weight_SN * wrong_N, axis=1)[:, step_T]
    above_ST = np.cumsum(weight_SN, axis=1)[:, step_T]
    wrong_S, right_S = hits_ST[:, -1:], above_ST[:, -1:] - hits_ST[:, -1:]
    with np.errstate(invalid="ignore", divide="ignore"):
        precision_ST = np.where(above_ST > 0.0, hits_ST / above_ST, 0.0)
        more_hits_ST = np.diff(hits_ST, prepend=0.0)
        more_right_ST = np.diff(above_ST - hits_ST, prepend=0.0)
        average_S = (precision_ST * more_hits_ST).sum(axis=1) / wrong_S[:, 0]
        half_S = (hits_ST >= 0.5 * wrong_S).argmax(axis=1)
        ahead_ST = hits_ST - 0.5 * more_hits_ST
        area_S = (ahead_ST * more_right_ST).sum(axis=1) / (wrong_S * right_S)[:, 0]
    measures_S3 = np.stack([average_S, precision_ST[np.arange(len(half_S)), half_S], area_S], axis=1)
    measures_S3[((wrong_S == 0.0) | (right_S == 0.0))[:, 0]] = np.nan
    return measures_S3


def measure_flags(
    wrong_N: BoolArray, flagged_N: BoolArray, probability_N: FloatArray | None, weight_SN: FloatArray
) -> FloatArray:
    """Compute the measures of flags for S weightings of the pairs; undefined measures are NaN.

    Args:
        wrong_N, weight_SN: arguments of :func:`measure_ranking`.
        flagged_N: flags of the method.
        probability_N: P(wrong label); without it the calibration is NaN.

    Returns:
        float64, shape (S, 4), in the order of :data:`FLAGS`.
    """
    expected_N = flagged_N * (np.full(len(wrong_N), np.nan) if probability_N is None else probability_N)
    columns_N5 = np.stack([np.ones(len(wrong_N)), flagged_N, flagged_N & wrong_N, wrong_N, expected_N], axis=1)
    all_S, flagged_S, hits_S, wrong_S, expected_S = (weight_SN @ columns_N5).T
    with np.errstate(invalid="ignore", divide="ignore"):
        precision_S = hits_S / flagged_S
        rates = (flagged_S / all_S, precision_S, hits_S / wrong_S, expected_S / flagged_S - precision_S)
    return np.stack(rates, axis=1)


def bootstrap_weights(query_N: IntArray, num_samples: int, seed: int) -> Iterator[FloatArray]:
    """Yield the weight of each pair in samples of queries drawn with replacement, in blocks (S, N).

    Args:
        query_N: query number of each pair, from 0.
        num_samples: total number of samples.
        seed: seed of the draws.
    """
    num_queries = int(query_N.max()) + 1
    rng = np.random.default_rng(seed)
    block = max(1, _BLOCK_CELLS // len(query_N))
    for start in range(0, num_samples, block):
        size = min(block, num_samples - start)
        drawn_SQ = rng.multinomial(num_queries, np.full(num_queries, 1.0 / num_queries), size=size)
        yield drawn_SQ[:, query_N].astype(np.float64)


def measure_method(
    scores: MethodScores,
    wrong_N: BoolArray,
    query_N: IntArray,
    sources: list[str] | None = None,
    num_samples: int = 1000,
    seed: int = 0,
) -> MethodFigures:
    """Measure a method, with 95 % percentile bootstrap intervals over queries.

    Args:
        scores: output of the method.
        wrong_N: whether each label is wrong.
        query_N: query number of each pair, from 0.
        sources: source of each pair; None without sources.
        num_samples, seed: number and seed of the bootstrap samples.

    Raises:
        DataError: all labels are equal, so that no ranking can be measured.
    """
    if not 0 < wrong_N.sum() < len(wrong_N):
        raise DataError(f"all {len(wrong_N)} labels are alike: a benchmark needs right and wrong labels")
    names, groups = list(RANKING), sorted(set(sources or ()))
    in_source_GN = np.array([[source == group for source in sources or ()] for group in groups], dtype=np.bool_)
    if scores.flagged_N is not None:
        names += [*FLAGS, *(f"source {group}" for group in groups)]

    def measures(weight_SN: FloatArray) -> FloatArray:
        parts = [measure_ranking(wrong_N, scores.suspicion_N, weight_SN)]
        if scores.flagged_N is not None:
            parts.append(measure_flags(wrong_N, scores.flagged_N, scores.probability_N, weight_SN))
            parts.extend(_share(scores.flagged_N, in_N, weight_SN) for in_N in in_source_GN)
        return np.concatenate(parts, axis=1)

    intervals = _intervals(measures, names, query_N, num_samples, seed)
    flags = {group: intervals.pop(f"source {group}") for group in groups if scores.flagged_N is not None}
    return MethodFigures(scores.method, intervals, scores.seconds, flags)


def share_by_source(
    wrong_N: BoolArray, query_N: IntArray, sources: list[str], num_samples: int = 1000, seed: int = 0
) -> dict[str, Interval]:
    """Compute the share of wrong labels of each source, with bootstrap intervals as in :func:`measure_method`."""
    groups = sorted(set(sources))
    in_source_GN = np.array([[source == group for source in sources] for group in groups])

    def shares(weight_SN: FloatArray) -> FloatArray:
        return np.concatenate([_share(wrong_N, in_N, weight_SN) for in_N in in_source_GN], axis=1)

    return _intervals(shares, groups, query_N, num_samples, seed)


def _share(which_N: BoolArray, among_N: BoolArray, weight_SN: FloatArray) -> FloatArray:
    """Compute the weighted share of pairs among others, shape (S, 1)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((weight_SN @ (which_N & among_N) / (weight_SN @ among_N))[:, None])


def _intervals(
    measures: Callable[[FloatArray], FloatArray], names: list[str], query_N: IntArray, num_samples: int, seed: int
) -> dict[str, Interval]:
    """Compute intervals of measures by name, without samples where a measure is undefined."""
    values_M = measures(np.ones((1, len(query_N))))[0]
    samples_SM = np.concatenate([measures(weight_SN) for weight_SN in bootstrap_weights(query_N, num_samples, seed)])
    tail = (1 - _CONFIDENCE) / 2
    intervals = {}
    for name, value, samples_S in zip(names, values_M.tolist(), samples_SM.T, strict=True):
        if not np.isnan(value):
            low, high = np.nanquantile(samples_S, [tail, 1 - tail]).tolist()
            intervals[name] = Interval(value, low, high)
    return intervals
