"""Quality of a judge, estimated from the verdicts that people reviewed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from raydr.noise.judges.base import BoolArray, FloatArray, IntArray

#: Prior means of shift and slope (a calibrated judge), and prior standard deviations.
_EXPECTED, _SPREAD = np.array([0.0, 1.0]), np.array([4.0, 0.5])
#: Bound of probabilities: a single decision must not weigh as much as a hundred.
_SMALLEST = 1e-3
_NUM_STEPS, _NUM_BINS, _CONFIDENCE = 41, 200, 0.95


class Interval(NamedTuple):
    """Estimate with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class ReviewedQuality:
    """Quality of a judge by decisions of people.

    Args:
        num_decided, num_wrong: labels that people settled, and those of them that are wrong.
        precision: share of flagged labels that are wrong.
        recall: share of wrong labels that are flagged.
        shift, slope: log-odds of a wrong label = shift + slope * evidence.
    """

    num_decided: int
    num_wrong: int
    precision: Interval
    recall: Interval
    shift: float
    slope: float


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
        probability_N: probability of a wrong label, if the judge gives it.
        edge: edge of all verdicts if these are a part; None: computed from these.

    >>> evidence(np.array([1.0, 3.0]), np.array([False, True])).tolist()
    [-2.0, 2.0]
    >>> evidence(np.array([1.0, 3.0]), np.array([False, True]), np.array([0.5, 1.0])).round(1).tolist()
    [0.0, 6.9]
    """
    if probability_N is not None:
        inside_N = np.clip(np.asarray(probability_N, dtype=np.float64), _SMALLEST, 1.0 - _SMALLEST)
        return np.asarray(np.log(inside_N) - np.log1p(-inside_N))
    edge = edge or Edge.of(scores_N, flagged_N)
    return np.asarray(2.0 * (np.asarray(scores_N, dtype=np.float64) - edge.score) / edge.spread)


def estimate_quality(
    evidence_N: FloatArray, flagged_N: BoolArray, decided_D: IntArray, wrong_D: BoolArray
) -> ReviewedQuality:
    """Estimate a judge's precision and recall on all its verdicts, from decisions of people on some.

    P(wrong | x) = σ(shift + slope · x) for evidence x (Platt's calibration), with normal priors around the judge's own
    claim, shift 0 and slope 1. Undecided labels count by that probability, decided ones by their decision. Any choice
    of reviewed labels is sound, since it depends on the evidence alone. The interval is that of the posterior. It
    assumes log-odds linear in x: review labels at both ends.

    Args:
        evidence_N: log-odds of all verdicts, see :func:`evidence`.
        flagged_N: whether the judge flags each.
        decided_D: indices of the settled labels.
        wrong_D: whether each settled label is wrong.

    >>> rng = np.random.default_rng(0)
    >>> x_N = rng.normal(0.0, 3.0, 2000)
    >>> wrong_N = rng.random(2000) < 1.0 / (1.0 + np.exp(-x_N))
    >>> quality = estimate_quality(x_N, x_N > 0, np.arange(200), wrong_N[:200])
    >>> bool(quality.precision.low < wrong_N[x_N > 0].mean() < quality.precision.high)
    True
    """
    from scipy.special import expit

    lines_S2, weight_S = _calibrate(evidence_N[decided_D], wrong_D)
    open_N = np.ones(len(evidence_N), dtype=np.bool_)
    open_N[decided_D] = False
    edges = np.histogram_bin_edges(evidence_N, _NUM_BINS)
    chance_SB = expit(lines_S2[:, :1] + lines_S2[:, 1:] * (edges[:-1] + edges[1:]) / 2)
    wrong_S: dict[bool, FloatArray] = {}
    for flagged in (True, False):
        mine_N = flagged_N == flagged
        known = np.count_nonzero(wrong_D & mine_N[decided_D])
        wrong_S[flagged] = known + chance_SB @ np.histogram(evidence_N[open_N & mine_N], edges)[0]
    total_S = np.maximum(wrong_S[True] + wrong_S[False], np.finfo(np.float64).tiny)
    return ReviewedQuality(
        num_decided=len(decided_D),
        num_wrong=int(wrong_D.sum()),
        precision=_interval(wrong_S[True] / max(1, int(flagged_N.sum())), weight_S),
        recall=_interval(wrong_S[True] / total_S, weight_S),
        shift=float(weight_S @ lines_S2[:, 0]),
        slope=float(weight_S @ lines_S2[:, 1]),
    )


def _calibrate(evidence_D: FloatArray, wrong_D: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return a grid of shifts and slopes around the mode, shape (S, 2), and their posterior weights, shape (S,)."""
    from scipy.optimize import minimize
    from scipy.special import expit, softmax

    design_D2 = np.stack([np.ones_like(evidence_D), evidence_D], axis=1)
    sign_D = np.where(wrong_D, 1.0, -1.0)

    def surprise(lines_S2: FloatArray) -> FloatArray:
        off_S2 = (lines_S2 - _EXPECTED) / _SPREAD
        losses_S = np.logaddexp(0.0, -sign_D * (lines_S2 @ design_D2.T)).sum(axis=-1) + 0.5 * (off_S2**2).sum(axis=-1)
        return np.asarray(losses_S)

    mode = minimize(surprise, _EXPECTED, method="Nelder-Mead").x
    chance_D = expit(design_D2 @ mode)
    curvature = (design_D2 * (chance_D * (1.0 - chance_D))[:, None]).T @ design_D2 + np.diag(_SPREAD**-2.0)
    # The normal approximation only sets the grid; the weights are exact, since after many equal decisions the posterior
    # is far from normal.
    steps = np.linspace(-5.0, 5.0, _NUM_STEPS)
    around_S2 = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2)
    lines_S2 = mode + around_S2 @ np.linalg.cholesky(np.linalg.inv(curvature)).T
    return lines_S2, softmax(-surprise(lines_S2))


def _interval(values_S: FloatArray, weight_S: FloatArray) -> Interval:
    order = np.argsort(values_S)
    rest = (1.0 - _CONFIDENCE) / 2
    places = np.searchsorted(np.cumsum(weight_S[order]), [rest, 0.5, 1.0 - rest])
    low, middle, high = values_S[order][np.minimum(places, len(order) - 1)]
    return Interval(float(middle), float(low), float(high))
