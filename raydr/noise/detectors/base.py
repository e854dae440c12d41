"""Interface of the detectors of mismatched pairs.

A detector splits the perplexities of all training pairs into low, clean ones and high, mismatched ones. It is fitted
once; all workers share its flags.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from raydr.component import Component
from raydr.errors import DataError

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

#: Lower bound of perplexities before a logarithm, so that 0 has one. A larger bound would pile up the surest pairs, and
#: the mixture would take the pile for a component: with dot products, margins of −40 are ordinary.
SMALLEST_PERPLEXITY = 1e-300
#: Increasing functions of the perplexity on which a mixture is fitted, see :class:`MixtureFit`.
Axis = Literal["perplexity", "log", "margin"]


@dataclass(frozen=True)
class MixtureFit:
    """Two Gaussians on an axis that is an increasing function of the perplexity; index 0 is the clean one.

    Args:
        axis: ``perplexity``; ``log``, its logarithm; or ``margin``, log(e^PPL − 1), by which the random passages
            outscore the positive.
        weights: weights of the components.
        means: means on the axis, ascending.
        variances: variances on the axis.
        bic_single: Bayesian information criterion of a single Gaussian (lower is better).
        bic_mixture: the same criterion of the two Gaussians.
        reason: why the components are not clean and mismatched pairs; empty if they are.
    """

    axis: Axis
    weights: tuple[float, float]
    means: tuple[float, float]
    variances: tuple[float, float]
    bic_single: float
    bic_mixture: float
    reason: str = ""

    @property
    def bimodal(self) -> bool:
        """Whether the two components are clean and mismatched pairs."""
        return not self.reason

    @property
    def separation(self) -> float:
        """Ashman's D, √2·|μ₁ − μ₀| / √(σ₀² + σ₁²); Gaussians are clearly separated from 2 on."""
        return (self.means[1] - self.means[0]) * math.sqrt(2.0 / (self.variances[0] + self.variances[1]))

    def log_densities(self, axis_N: FloatArray) -> FloatArray:
        """log(weight · density) of both components at points of the axis, shape (2, N)."""
        weights, means, variances = (np.array(pair)[:, None] for pair in (self.weights, self.means, self.variances))
        squared_2N = (axis_N - means) ** 2 / variances
        return np.asarray(np.log(weights) - 0.5 * (np.log(2.0 * np.pi * variances) + squared_2N))

    def log_posterior(self, perplexities_N: FloatArray) -> FloatArray:
        """log p(clean | perplexity), finite and never increasing in the perplexity, shape (N,).

        Two Gaussians of different width cross twice: far out on one side the wider wins again, and the smallest
        perplexities could count as mismatched. The log-odds have one stationary point, outside the means; beyond it
        they keep its value.
        """
        axis_N = to_axis(perplexities_N, self.axis)
        (mean_0, mean_1), (var_0, var_1) = self.means, self.variances
        # Slope of the log-odds at x: constant + slope · x, negative between the means.
        constant, slope = mean_0 / var_0 - mean_1 / var_1, 1.0 / var_1 - 1.0 / var_0
        if slope < 0.0:
            axis_N = np.maximum(axis_N, -constant / slope)
        elif slope > 0.0:
            axis_N = np.minimum(axis_N, -constant / slope)
        log_clean_N, log_noisy_N = self.log_densities(axis_N)
        return np.asarray(-np.logaddexp(0.0, log_noisy_N - log_clean_N))


@dataclass(frozen=True)
class Detection:
    """Flags of N training pairs, and their basis.

    Args:
        clean: bool, shape (N,), False for mismatched pairs.
        log_posterior: float64, shape (N,), log p(clean | perplexity); 0 everywhere if the fit is not bimodal.
        threshold: λ, the posterior above which a pair is clean.
        fit: fitted mixture; None without a mixture.
        reason: why all pairs were kept; empty if the detector was conclusive.
        share_mismatched: estimated share of mismatched pairs; None if the detector was inconclusive.
    """

    clean: BoolArray
    log_posterior: FloatArray
    threshold: float
    fit: MixtureFit | None
    reason: str = ""
    share_mismatched: float | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """Basis of the decision, as JSON values."""
        return {
            "reason": self.reason,
            "threshold": self.threshold,
            "fit": asdict(self.fit) if self.fit is not None else None,
            "share_mismatched": self.share_mismatched,
        }


class Detector(Component):
    """Base of the detectors; subclasses implement :meth:`detect`."""

    package: ClassVar[str] = "raydr.noise.detectors"
    kind: ClassVar[str] = "detector"
    reads_random_pairs: ClassVar[bool] = False
    """Whether the detector compares with perplexities of random pairs."""

    threshold: float = Field(default=0.5, ge=0.0, lt=1.0)
    """λ; a pair is clean if p(clean | perplexity) > λ. 0 flags nothing."""

    @property
    def reads_draws_alone(self) -> bool:
        """Whether flags rest on a single draw for each pair, not on the mean probability over draws."""
        return False

    @abstractmethod
    def detect(
        self, perplexities_N: FloatArray, random_N: FloatArray | None = None, fold_N: IntArray | None = None
    ) -> Detection:
        """Flag mismatched pairs, independent of their order.

        Args:
            perplexities_N: perplexity of each training pair, see :func:`raydr.noise.perplexity.perplexities`.
            random_N: perplexities of random pairs, see :func:`raydr.noise.perplexity.random_pair_perplexities`; NaN
                where there is none. Some detectors ignore them.
            fold_N: fold whose model measured each pair and its random pair, if several models did; some detectors
                ignore it.

        Raises:
            DataError: perplexities are negative or not finite, or the detector needs random pairs and got none.
        """

    def keep_all(self, perplexities_N: FloatArray, fit: MixtureFit | None, reason: str) -> Detection:
        """Return a detection that flags no pair."""
        clean_N = np.ones(perplexities_N.shape, dtype=np.bool_)
        return Detection(clean_N, np.zeros(perplexities_N.shape), self.threshold, fit, reason)

    def is_clean(self, log_posterior_N: FloatArray) -> BoolArray:
        """Return whether log p(clean | perplexity) > log λ, shape (N,)."""
        return np.asarray(log_posterior_N > (np.log(self.threshold) if self.threshold > 0.0 else -np.inf))


class MixtureDetector(Detector):
    """Base of the two-component detectors; subclasses implement :meth:`fit`.

    All pairs are kept, with a reason, unless the perplexities form two groups: one component must fit worse (BIC), and
    neither component may be almost empty or too close to the other.
    """

    min_clean_weight: float = Field(default=0.1, ge=0.0, le=0.5)
    """Smallest weight of the clean component."""

    min_noisy_weight: float = Field(default=0.01, ge=0.0, le=0.5)
    """Smallest weight of the mismatched component."""

    min_separation: float = Field(default=1.0, ge=0.0)
    """Smallest distance of the components, as Ashman's D; 2 is clearly separated."""

    @abstractmethod
    def fit(self, perplexities_N: FloatArray, random_R: FloatArray) -> MixtureFit:
        """Fit the mixture to finite perplexities that differ, independent of their order.

        Args:
            perplexities_N: perplexities of the training pairs.
            random_R: perplexities of random pairs; may be empty.
        """

    def detect(
        self, perplexities_N: FloatArray, random_N: FloatArray | None = None, fold_N: IntArray | None = None
    ) -> Detection:
        perplexities_N = checked(perplexities_N)
        random_R = np.zeros(0) if random_N is None else checked(random_N[~np.isnan(random_N)])
        if self.reads_random_pairs and random_N is None:
            raise DataError(f"detector {self.name} needs the perplexities of random pairs, and got none")
        if np.unique(perplexities_N).size < 10:
            return self.keep_all(perplexities_N, None, "fewer than 10 distinct perplexities")
        if self.reads_random_pairs and np.unique(random_R).size < 10:
            return self.keep_all(perplexities_N, None, "fewer than 10 distinct perplexities of random pairs")
        fit = self.fit(perplexities_N, random_R)
        if not fit.bimodal:
            return self.keep_all(perplexities_N, fit, fit.reason)
        log_posterior_N = fit.log_posterior(perplexities_N)
        clean_N = self.is_clean(log_posterior_N)
        return Detection(clean_N, log_posterior_N, self.threshold, fit, share_mismatched=fit.weights[1])

    def why_not_bimodal(self, fit: MixtureFit) -> str:
        """Return the first test that the components fail; empty if they pass all."""
        if fit.bic_mixture >= fit.bic_single:
            return f"one component fits the perplexities as well (BIC {fit.bic_single:.1f}, two: {fit.bic_mixture:.1f})"
        smallest_weights = {"clean": self.min_clean_weight, "noisy": self.min_noisy_weight}
        for weight, (label, smallest) in zip(fit.weights, smallest_weights.items(), strict=True):
            if weight < smallest:
                return f"the {label} component is almost empty (weight {weight:.4f} < {smallest})"
        if not fit.separation >= self.min_separation:
            return f"the components are too close (Ashman's D {fit.separation:.2f} < {self.min_separation})"
        return ""


def checked(perplexities_N: FloatArray) -> FloatArray:
    """Return perplexities as float64.

    Raises:
        DataError: perplexities are negative, not finite, or not of shape (N,).
    """
    perplexities_N = np.asarray(perplexities_N, dtype=np.float64)
    if perplexities_N.ndim != 1 or not np.isfinite(perplexities_N).all() or (perplexities_N < 0).any():
        raise DataError("perplexities must be finite, not negative and of shape (N,)")
    return perplexities_N


def to_axis(perplexities_N: FloatArray, axis: Axis) -> FloatArray:
    """Map perplexities to the axis of a mixture, shape (N,); each axis is increasing.

    >>> to_axis(np.log(np.array([2.0])), "margin").round(6).tolist()  # PPL log 2: the odds are even
    [0.0]
    """
    if axis == "perplexity":
        return perplexities_N
    positive_N = np.maximum(perplexities_N, SMALLEST_PERPLEXITY)
    if axis == "log":
        return np.log(positive_N)
    # log(e^p − 1) = p + log(1 − e^−p): no overflow for large p, no cancellation for small p.
    return np.asarray(positive_N + np.log(-np.expm1(-positive_N)))
