"""What filters of hard negatives remove: false negatives (good) against true ones (bad), at every threshold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.candidate_scores import ScoredSplit
from raydr.negatives.samplers.base import CandidateList, Sampler
from raydr.seeding import query_rng

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Curve:
    """Shares removed as a filter gets stricter, from (0, 0) to (1, 1).

    Args:
        lost_T: share of the true negatives that is removed, rising.
        removed_T: share of the known false negatives that is removed.
    """

    lost_T: FloatArray
    removed_T: FloatArray

    @property
    def area(self) -> float:
        """Area below the curve: for a filter with a threshold its AUROC, 0.5 for removing at random."""
        return float(np.trapezoid(self.removed_T, self.lost_T))

    def removed_at(self, lost: float) -> float:
        """Share of false negatives removed where so many true ones are lost."""
        return float(np.interp(lost, self.lost_T, self.removed_T))


def threshold_curve(suspicion_M: FloatArray, false_M: BoolArray, times_M: FloatArray | None = None) -> Curve:
    """The filter that removes what is above a threshold, for all thresholds; equal suspicions go together.

    Args:
        suspicion_M: one a candidate.
        false_M: whether it is a known false negative.
        times_M: how many times it counts; once if None.

    >>> curve = threshold_curve(np.array([3.0, 2.0, 2.0, 1.0]), np.array([True, True, False, False]))
    >>> curve.lost_T.tolist(), curve.removed_T.tolist(), curve.area
    ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0], 0.875)
    """
    order = np.argsort(-suspicion_M, kind="stable")
    last_of_its_value = np.append(np.diff(suspicion_M[order]) != 0, True)
    times_M = np.ones(len(suspicion_M)) if times_M is None else times_M
    shares = []
    for kind_M in (~false_M, false_M):
        counted = np.cumsum((times_M * kind_M)[order])[last_of_its_value]
        shares.append(np.concatenate([[0.0], counted / max(1.0, counted[-1])]))
    return Curve(shares[0], shares[1])


def area_interval(
    suspicion_M: FloatArray, false_M: BoolArray, query_M: NDArray[np.int64], num_samples: int, seed: int
) -> tuple[float, float]:
    """95 % bootstrap interval of a threshold curve's area; queries are drawn with all of their candidates."""
    times_SQ = _resample(int(query_M.max()) + 1, num_samples, seed)
    with_false = times_SQ[:, np.unique(query_M[false_M])].sum(axis=1) > 0
    areas = [threshold_curve(suspicion_M, false_M, times_Q[query_M]).area for times_Q in times_SQ[with_false]]
    return _interval(np.array(areas))


def _resample(num_queries: int, num_samples: int, seed: int) -> FloatArray:
    """How many times each query is in each sample, shape (samples, queries)."""
    share = np.full(num_queries, 1 / num_queries)
    return np.random.default_rng(seed).multinomial(num_queries, share, size=num_samples).astype(np.float64)


def sampler_curve(sampler: Sampler, scored: ScoredSplit, scale: float, seed: int, num_draws: int) -> Curve:
    """A sampler as a filter: what it does not draw is removed. A point for each number of negatives drawn, averaged.

    A candidate's place among all that are drawn, one after the other, says for which numbers it is used.

    Args:
        sampler: draws without replacement, one after the other.
        scored: the candidates.
        scale: of the scores, as the model is trained with.
        seed: of the draws.
        num_draws: epochs to average over.
    """
    offsets, scores_M = scored.candidates.offsets, scale * scored.candidates.scores_M
    positive_Q = scale * scored.candidates.positives("sampler")
    longest = int(np.diff(offsets).max())
    lost, removed = np.zeros(longest + 1), np.zeros(longest + 1)
    for draw in range(num_draws):
        place_M = np.empty(len(scores_M), dtype=np.int64)
        for at, query_id in enumerate(scored.query_ids):
            start, end = int(offsets[at]), int(offsets[at + 1])
            listed = CandidateList(scores_M[start:end], float(positive_Q[at]))
            drawn = sampler.sample(listed, end - start, query_rng(seed, draw, query_id, "negatives"))
            place_M[start + drawn.indices] = np.arange(end - start)
        lost += _not_drawn(place_M[~scored.false_M], longest)
        removed += _not_drawn(place_M[scored.false_M], longest)
    # From drawing all of a list, which removes nothing, to drawing none of it.
    return Curve(lost[::-1] / num_draws, removed[::-1] / num_draws)


def _not_drawn(place: NDArray[np.int64], longest: int) -> FloatArray:
    """For 0, 1, ... negatives drawn: the share of these candidates that is not among them."""
    return np.array([(place >= num).mean() for num in range(longest + 1)])


@dataclass(frozen=True)
class Point:
    """One setting of a filter, with bootstrap intervals over the queries.

    Args:
        lost, removed: as in :class:`Curve`.
        lost_range, removed_range: their intervals.
        precision: share of what is removed that is known to be false; NaN where nothing is.
        precision_range: its interval.
    """

    lost: float
    removed: float
    lost_range: tuple[float, float]
    removed_range: tuple[float, float]
    precision: float
    precision_range: tuple[float, float]


def operating_point(
    flagged_M: BoolArray, false_M: BoolArray, query_M: NDArray[np.int64], num_samples: int, seed: int
) -> Point:
    """What a filter removes with one setting; queries are drawn with all of their candidates."""
    num_queries = int(query_M.max()) + 1

    def count(mask_M: BoolArray) -> FloatArray:
        return np.bincount(query_M[mask_M], minlength=num_queries).astype(np.float64)

    counts_4Q = np.stack([count(false_M & flagged_M), count(false_M), count(~false_M & flagged_M), count(~false_M)])
    # The whole first, then the samples.
    drawn_SQ = np.concatenate([np.ones((1, num_queries)), _resample(num_queries, num_samples, seed)])
    hits_S, false_S, losses_S, true_S = counts_4Q @ drawn_SQ.T
    with np.errstate(invalid="ignore"):
        shares = losses_S / true_S, hits_S / false_S, hits_S / (hits_S + losses_S)
    (lost, lost_range), (removed, removed_range), (precision, precision_range) = (
        (float(one[0]), _interval(one[1:])) for one in shares
    )
    return Point(lost, removed, lost_range, removed_range, precision, precision_range)


def _interval(values_S: FloatArray) -> tuple[float, float]:
    """95 % percentile interval, without samples that have nothing to divide by."""
    if np.isnan(values_S).all():
        return float("nan"), float("nan")
    low, high = np.nanquantile(values_S, [0.025, 0.975])
    return float(low), float(high)
