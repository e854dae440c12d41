"""Detector by the local false-discovery rate, with random pairs as the null, without a mixture."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from raydr.errors import DataError
from raydr.noise.detectors.base import BoolArray, Detection, Detector, FloatArray, IntArray, checked

#: Starts of the two tails that bound the share from below, and factor of extrapolation.
_HALF, _FIFTH, _FURTHER = 0.5, 0.8, 1.5
#: Standard deviations subtracted from a lower limit: of the share, and of a number of pairs.
_OFF_SHARE, _OFF_COUNT = 2.8, 2.0
#: Minimum of p(clean), so that its logarithm is finite and the threshold 0 flags nothing.
_SMALLEST_POSTERIOR = 1e-12


class LocalFdrDetector(Detector):
    """Local false-discovery rate of calling a pair right, with random pairs as the null.

    Margins of mismatched pairs are distributed as those of random pairs. So p_i = (1 + #{random margins ≤ z_i}) / (R +
    1), counted among the random pairs of its fold, is uniform for mismatched pairs and small for right pairs. With

        π̂ = min(1, #{p > ½} / (½ N))   (Storey's share of mismatched pairs),
        f = max(Grenander's density of p, π̂)   (decreasing, by pooling adjacent violators),

    P(mismatched | p) = π̂ / f(p), which never falls with the margin. π̂ is no bound. It counts hard right pairs too, so
    that P is too high for doubtful pairs. It misses wrong passages that are nearer to the query than random passages.
    The detector needs no start and no minimum distance of two groups. It is meant for margins of models that were
    trained on neither the pair nor its passage; otherwise π̂ is far too low.

    Source: Efron et al. (JASA 2001), the local false-discovery rate; Storey (JRSS B 2002), the share; Grenander (1956).

    >>> rng = np.random.default_rng(1)
    >>> margins_N = np.concatenate([rng.normal(-2.0, 2.0, 900), rng.normal(4.0, 1.0, 100)])
    >>> random_N = rng.normal(4.0, 1.0, 1000)
    >>> detection = LocalFdrDetector().detect(margins_N, random_N)
    >>> round(detection.share_mismatched, 2), int((~detection.clean)[:900].sum()), int((~detection.clean)[900:].sum())
    (0.1, 6, 90)
    """

    reads_random_pairs: ClassVar[bool] = True

    name: Literal["local_fdr"] = "local_fdr"
    max_right_flagged: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Maximum of the share of right pairs among the flagged pairs, in place of ``threshold``; off if null. The pairs
    with the highest margins are flagged, by a lower limit of the mismatched share. It is a bound, which holds in 95 of
    100 data sets (docs/methods.md). With a few hundred pairs the limit is 0, and no pair is flagged."""

    max_wrong_kept: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Maximum of the share of mismatched pairs among the kept pairs, in place of ``threshold``; off if null. The pairs
    with the lowest margins are kept, by their probabilities. It is an estimate, no bound: it misses mismatched pairs
    whose passage is nearer to the query than a random passage."""

    @model_validator(mode="after")
    def _has_a_single_rule(self) -> LocalFdrDetector:
        if self.max_right_flagged is not None and self.max_wrong_kept is not None:
            raise ValueError("max_right_flagged and max_wrong_kept are two rules for one flag: set one of them")
        return self

    @property
    def reads_draws_alone(self) -> bool:
        return self.max_right_flagged is not None

    def detect(
        self, margins_N: FloatArray, random_N: FloatArray | None = None, fold_N: IntArray | None = None
    ) -> Detection:
        margins_N = checked(margins_N)
        if random_N is None:
            raise DataError(f"detector {self.name} needs the margins of random pairs, and got none")
        if fold_N is None:
            groups = [(np.ones(len(margins_N), np.bool_), np.ones(len(random_N), np.bool_))]
        elif len(fold_N) == len(margins_N) == len(random_N):
            groups = [(fold_N == fold, fold_N == fold) for fold in np.unique(fold_N)]
        else:
            raise DataError(f"got {len(fold_N)} folds for {len(margins_N)} pairs and {len(random_N)} random pairs")
        p_N, num_random = np.empty(len(margins_N)), 0
        for mine_N, null_N in groups:
            random_R = checked(random_N[null_N & ~np.isnan(random_N)])
            if np.unique(random_R).size < 10:
                return self.keep_all(margins_N, None, "fewer than 10 distinct margins of random pairs")
            p_N[mine_N] = p_values(margins_N[mine_N], random_R)
            num_random += len(random_R)
        share = storey_share(p_N)
        # With share 0 no margin reaches the median of random pairs.
        noisy_N = share / np.maximum(grenander_density(p_N), share) if share else np.zeros(len(p_N))
        log_posterior_N = np.log(np.maximum(1.0 - noisy_N, _SMALLEST_POSTERIOR))
        if self.max_right_flagged is not None:
            clean_N = ~mostly_wrong(p_N, least_share(p_N, num_random), self.max_right_flagged)
        else:
            clean_N = self.is_clean(log_posterior_N)
        return Detection(clean_N, log_posterior_N, self.threshold, None, share_mismatched=share)

    def is_clean(self, log_posterior_N: FloatArray) -> BoolArray:
        if self.max_wrong_kept is None:
            return super().is_clean(log_posterior_N)
        # Equal values count together, so that the order of pairs does not matter.
        values, counts = np.unique(-log_posterior_N, return_counts=True)
        wrong_share = np.cumsum(-np.expm1(-values) * counts) / np.cumsum(counts)
        num_values = int(np.searchsorted(wrong_share, self.max_wrong_kept, side="right"))
        return np.isin(-log_posterior_N, values[:num_values])


def p_values(margins_N: FloatArray, random_R: FloatArray) -> FloatArray:
    """Return (1 + #{random ≤ margin}) / (R + 1), shape (N,): small for margins below those of random pairs.

    >>> p_values(np.array([0.0, 2.0, 9.0]), np.array([1.0, 2.0, 3.0])).tolist()
    [0.25, 0.75, 1.0]
    """
    below_N = np.searchsorted(np.sort(random_R), margins_N, side="right")
    return np.asarray((1.0 + below_N) / (len(random_R) + 1.0))


def storey_share(p_N: FloatArray) -> float:
    """Return min(1, #{p > ½} / (½ N)), an estimate of the share with uniform p; right pairs count if p > ½.

    >>> storey_share(np.array([0.01, 0.02, 0.4, 0.9]))
    0.5
    """
    return float(min(1.0, 2.0 * (p_N > 0.5).mean()))


def least_share(p_N: FloatArray, num_random: int) -> float:
    """Return a lower limit of the share of pairs with uniform p, from two upper tails.

    With n(λ) = #{p > λ} and e(λ) = n(λ) / ((1 − λ) N), which falls to the share as right pairs vanish,

        max(0, e(0.8) − 1.5 (e(0.5) − e(0.8)) − 2.8 sd).

    The decrease of e between the tails is extrapolated by a factor of 1.5. This exceeds the right pairs left in the
    last fifth if their margins are normal and the AUROC is at least 0.75. sd is the standard deviation of the counts of
    pairs and random pairs; its factor allows for dependent pairs.

    Args:
        p_N: p-values, see :func:`p_values`.
        num_random: number of random pairs behind each p-value.

    >>> rng = np.random.default_rng(0)
    >>> p_N = np.where(np.arange(20_000) < 6_000, rng.random(20_000), rng.beta(0.2, 8.0, 20_000))
    >>> round(least_share(p_N, 20_000), 2)
    0.26
    """
    num = len(p_N)
    fifth, half = (int((p_N > tail).sum()) for tail in (_FIFTH, _HALF))
    of_fifth, of_half = 1.0 / (num * (1.0 - _FIFTH)), 1.0 / (num * (1.0 - _HALF))
    # Weights of pairs in the last fifth, and between the half and the last fifth.
    weights = (1.0 + _FURTHER) * of_fifth - _FURTHER * of_half, -_FURTHER * of_half
    counts = np.array([fifth, half - fifth], dtype=np.float64)
    # With as many random pairs as pairs, the variance doubles.
    inflation = 1.0 + min(1.0, half * of_half) * num / num_random
    deviation = np.sqrt(inflation * np.dot(np.square(weights), np.maximum(counts, 1.0)))
    return float(max(0.0, np.dot(weights, counts) - _OFF_SHARE * deviation))


def mostly_wrong(p_N: FloatArray, share: float, max_right: float) -> BoolArray:
    """Flag the most pairs, those with the largest p, with at most a share ``max_right`` of right pairs, shape (N,).

    Of the mismatched pairs, w = share · N · (1 − t) have p ≥ t, hardly ever fewer than w − 2 √w. All other pairs with p
    ≥ t are right.

    >>> p_N = np.concatenate([np.linspace(0.0, 0.1, 500), np.linspace(0.0, 1.0, 500)])
    >>> flagged_N = mostly_wrong(p_N, share=0.5, max_right=0.1)
    >>> int(flagged_N[:500].sum()), int(flagged_N[500:].sum())
    (3, 450)
    """
    values, counts = np.unique(p_N, return_counts=True)
    num_from = np.cumsum(counts[::-1])[::-1]
    wrong = share * len(p_N) * (1.0 - values)
    right_share = 1.0 - (wrong - _OFF_COUNT * np.sqrt(wrong)) / num_from
    allowed = np.flatnonzero(right_share <= max_right)
    return np.asarray(p_N >= values[allowed[0]]) if len(allowed) else np.zeros(len(p_N), np.bool_)


def grenander_density(p_N: FloatArray) -> FloatArray:
    """Return the maximum-likelihood decreasing density on [0, 1], at the values, shape (N,).

    It is the slope of the least concave majorant of the empirical distribution function, by pooling steps that would
    rise.

    >>> grenander_density(np.array([0.1, 0.1, 0.5, 1.0])).round(2).tolist()
    [5.0, 5.0, 0.62, 0.5]
    """
    # Configs import detectors, and scikit-learn is slow to import.
    from sklearn.isotonic import isotonic_regression

    values, place_N, counts = np.unique(p_N, return_inverse=True, return_counts=True)
    widths = np.diff(values, prepend=0.0)
    steps = isotonic_regression(counts / len(p_N) / widths, sample_weight=widths, increasing=False)
    return np.asarray(steps[place_N], dtype=np.float64)
