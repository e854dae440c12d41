"""A detector without a mixture: how much rarer a pair's margin is among random pairs than among the pairs."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from raydr.errors import DataError
from raydr.noise.detectors.base import BoolArray, Detection, Detector, FloatArray, IntArray, checked

#: Smallest p(clean): its logarithm is finite, so that the threshold 0 flags nothing.
_SMALLEST_POSTERIOR = 1e-12


class LocalFdrDetector(Detector):
    """The local false-discovery rate of taking a pair for right, with random pairs as the null.

    A mismatched pair is as surprising as a random one, so p_i = (1 + #{random margins ≤ z_i}) / (R + 1), counted among
    the random pairs of its fold, is uniform for mismatched pairs and small for right ones. With

        π̂ = min(1, #{p > ½} / (½ N))   (Storey's share of mismatched pairs),
        f = max(Grenander's density of p, π̂)   (decreasing, by pooling adjacent violators),

    P(mismatched | p) = π̂ / f(p), which never falls with the perplexity. π̂ is an upper bound, since right pairs that are
    hard count too. There is nothing to start from and no distance that two groups must have. Meant for margins of
    models that have not seen the pair, nor its passage: one that has partly learnt it, and π̂ is far too low.

    Source: Efron et al. (JASA 2001), the local false-discovery rate; Storey (JRSS B 2002), the share; Grenander (1956).

    >>> rng = np.random.default_rng(1)
    >>> margins_N = np.concatenate([rng.normal(-2.0, 2.0, 900), rng.normal(4.0, 1.0, 100)])
    >>> random_N = rng.normal(4.0, 1.0, 1000)
    >>> detection = LocalFdrDetector().detect(np.logaddexp(0.0, margins_N), np.logaddexp(0.0, random_N))
    >>> round(detection.share_mismatched, 2), int((~detection.clean)[:900].sum()), int((~detection.clean)[900:].sum())
    (0.1, 6, 90)
    """

    reads_random_pairs: ClassVar[bool] = True

    name: Literal["local_fdr"] = "local_fdr"
    max_false_share: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Flag in the order of the posterior as long as the mean p(clean) of the flagged is at most this, in place of the
    threshold: the expected share of right pairs among them; off if null."""

    def detect(
        self, perplexities_N: FloatArray, random_N: FloatArray | None = None, fold_N: IntArray | None = None
    ) -> Detection:
        perplexities_N = checked(perplexities_N)
        if random_N is None:
            raise DataError(f"detector {self.name} compares with random pairs: give their perplexities")
        if fold_N is None:
            groups = [(np.ones(len(perplexities_N), np.bool_), np.ones(len(random_N), np.bool_))]
        elif len(fold_N) == len(perplexities_N) == len(random_N):
            groups = [(fold_N == fold, fold_N == fold) for fold in np.unique(fold_N)]
        else:
            raise DataError(f"{len(fold_N)} folds of {len(perplexities_N)} pairs and {len(random_N)} random ones")
        p_N = np.empty(len(perplexities_N))
        for mine_N, null_N in groups:
            random_R = checked(random_N[null_N & ~np.isnan(random_N)])
            if np.unique(random_R).size < 10:
                return self.keep_all(perplexities_N, None, "fewer than 10 different perplexities of random pairs")
            p_N[mine_N] = p_values(perplexities_N[mine_N], random_R)
        share = storey_share(p_N)
        # Where no pair is as surprising as the median random one, nothing is wrong.
        noisy_N = share / np.maximum(grenander_density(p_N), share) if share else np.zeros(len(p_N))
        log_posterior_N = np.log(np.maximum(1.0 - noisy_N, _SMALLEST_POSTERIOR))
        return Detection(self.is_clean(log_posterior_N), log_posterior_N, self.threshold, None, share_mismatched=share)

    def is_clean(self, log_posterior_N: FloatArray) -> BoolArray:
        if self.max_false_share is None:
            return super().is_clean(log_posterior_N)
        # The surest first; equal ones together, so that the order of the pairs does not matter.
        values, counts = np.unique(log_posterior_N, return_counts=True)
        false_share = np.cumsum(np.exp(values) * counts) / np.cumsum(counts)
        num_values = int(np.searchsorted(false_share, self.max_false_share, side="right"))
        return ~np.isin(log_posterior_N, values[:num_values])


def p_values(perplexities_N: FloatArray, random_R: FloatArray) -> FloatArray:
    """(1 + #{random ≤ perplexity}) / (R + 1): small where a pair is less surprising than random ones, shape (N,).

    >>> p_values(np.array([0.0, 2.0, 9.0]), np.array([1.0, 2.0, 3.0])).tolist()
    [0.25, 0.75, 1.0]
    """
    below_N = np.searchsorted(np.sort(random_R), perplexities_N, side="right")
    return np.asarray((1.0 + below_N) / (len(random_R) + 1.0))


def storey_share(p_N: FloatArray) -> float:
    """min(1, #{p > ½} / (½ N)), an upper bound of the share for which p is uniform.

    >>> storey_share(np.array([0.01, 0.02, 0.4, 0.9]))
    0.5
    """
    return float(min(1.0, 2.0 * (p_N > 0.5).mean()))


def grenander_density(p_N: FloatArray) -> FloatArray:
    """The decreasing density on [0, 1] under which values are likeliest, at the values, shape (N,).

    The slope of the least concave majorant of their distribution function: the mass of each step over its width, pooled
    where it would rise.

    >>> grenander_density(np.array([0.1, 0.1, 0.5, 1.0])).round(2).tolist()
    [5.0, 5.0, 0.62, 0.5]
    """
    # Imported here: configs name detectors, and reading a config must not take as long as importing scikit-learn.
    from sklearn.isotonic import isotonic_regression

    values, place_N, counts = np.unique(p_N, return_inverse=True, return_counts=True)
    widths = np.diff(values, prepend=0.0)
    steps = isotonic_regression(counts / len(p_N) / widths, sample_weight=widths, increasing=False)
    return np.asarray(steps[place_N], dtype=np.float64)
