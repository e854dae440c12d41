"""Interface of the detectors of mismatched pairs.

A detector splits the margins of all training pairs into low margins of clean pairs and high margins of mismatched
pairs. It is fitted once, and all workers share its flags.
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

#: Increasing functions of the margin on which a mixture is fitted, see :class:`MixtureFit`.
Axis = Literal["perplexity", "log", "margin"]
#: Margins below which log log(1 + e^margin) is the margin to float64's precision.
_SURE = -40.0


@dataclass(frozen=True)
class MixtureFit:
    """Two Gaussians on an axis that is an increasing function of the margin; index 0 is the clean component.

    Args:
        axis: ``margin``; ``perplexity``, its soft-plus log(1 + e^margin); or ``log``, the logarithm of that.
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
        """Return log(weight · density) of both components at points of the axis, shape (2, N)."""
        weights, means, variances = (np.array(pair)[:, None] for pair in (self.weights, self.means, self.variances))
        squared_2N = (axis_N - means) ** 2 / variances
        return np.asarray(np.log(weights) - 0.5 * (np.log(2.0 * np.pi * variances) + squared_2N))

    def log_posterior(self, margins_N: FloatArray) -> FloatArray:
        """Return log p(clean | margin), finite and never increasing in the margin, shape (N,).

        Two Gaussians of different width cross twice. Beyond the outer crossing the wider Gaussian is larger again, so
        that the smallest margins could count as mismatched. The log-odds have a single stationary point, outside the
        means; beyond it they keep its value.
        """
        axis_N = to_axis(margins_N, self.axis)
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
        log_posterior: float64, shape (N,), log p(clean | margin); 0 everywhere if the fit is not bimodal.
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
    """Whether the detector compares with margins of random pairs."""

    threshold: float = Field(default=0.5, ge=0.0, lt=1.0)
    """λ; a pair is clean if p(clean | margin) > λ. 0 flags nothing."""

    @property
    def reads_draws_alone(self) -> bool:
        """Whether flags depend on a single draw for each pair, not on the mean probability over draws."""
        return False

    @abstractmethod
    def detect(
        self, margins_N: FloatArray, random_N: FloatArray | None = None, fold_N: IntArray | None = None
    ) -> Detection:
        """Flag mismatched pairs, independent of their order.

        Args:
            margins_N: margin of each training pair, see :mod:`raydr.noise.margins`.
            random_N: margins of random pairs, NaN if missing; some detectors ignore them.
            fold_N: fold whose model measured each pair and its random pair; None with a single model. Some detectors
                ignore it.

        Raises:
            DataError: margins are not finite, or required margins of random pairs are missing.
        """

    def keep_all(self, margins_N: FloatArray, fit: MixtureFit | None, reason: str) -> Detection:
        """Return a detection that flags no pair."""
        clean_N = np.ones(margins_N.shape, dtype=np.bool_)
        return Detection(clean_N, np.zeros(margins_N.shape), self.threshold, fit, reason)

    def is_clean(self, log_posterior_N: FloatArray) -> BoolArray:
        """Return whether log p(clean | margin) > log λ, shape (N,)."""
        return np.asarray(log_posterior_N > (np.log(self.threshold) if self.threshold > 0.0 else -np.inf))


class MixtureDetector(Detector):
    """Base of the two-component detectors; subclasses implement :meth:`fit`.

    All pairs are kept, with a reason, unless the margins form two groups: a single component must fit worse (BIC), and
    the two components must be neither almost empty nor too close.
    """

    min_clean_weight: float = Field(default=0.1, ge=0.0, le=0.5)
    """Minimum weight of the clean component."""

    min_noisy_weight: float = Field(default=0.01, ge=0.0, le=0.5)
    """Minimum weight of the mismatched component."""

    min_separation: float = Field(default=1.0, ge=0.0)
    """Minimum distance of the components, as Ashman's D; 2 is clearly separated."""

    @abstractmethod
    def fit(self, margins_N: FloatArray, random_R: FloatArray) -> MixtureFit:
        """Fit the mixture to finite margins that differ, independent of their order.

        Args:
            margins_N: margins of the training pairs.
            random_R: margins of random pairs; may be empty.
        """

    def detect(
        self, margins_N: FloatArray, random_N: FloatArray | None = None, fold_N: IntArray | None = None
    ) -> Detection:
        margins_N = checked(margins_N)
        random_R = np.zeros(0) if random_N is None else checked(random_N[~np.isnan(random_N)])
        if self.reads_random_pairs and random_N is None:
            raise DataError(f"detector {self.name} needs the margins of random pairs, and got none")
        if np.unique(margins_N).size < 10:
            return self.keep_all(margins_N, None, "fewer than 10 distinct margins")
        if self.reads_random_pairs and np.unique(random_R).size < 10:
            return self.keep_all(margins_N, None, "fewer than 10 distinct margins of random pairs")
        fit = self.fit(margins_N, random_R)
        if not fit.bimodal:
            return self.keep_all(margins_N, fit, fit.reason)
        log_posterior_N = fit.log_posterior(margins_N)
        clean_N = self.is_clean(log_posterior_N)
        return Detection(clean_N, log_posterior_N, self.threshold, fit, share_mismatched=fit.weights[1])

    def why_not_bimodal(self, fit: MixtureFit) -> str:
        """Return the first test that the components fail; empty if they pass all tests."""
        if fit.bic_mixture >= fit.bic_single:
            return f"one component fits the margins as well (BIC {fit.bic_single:.1f}, two: {fit.bic_mixture:.1f})"
        smallest_weights = {"clean": self.min_clean_weight, "noisy": self.min_noisy_weight}
        for weight, (label, smallest) in zip(fit.weights, smallest_weights.items(), strict=True):
            if weight < smallest:
                return f"the {label} component is almost empty (weight {weight:.4f} < {smallest})"
        if not fit.separation >= self.min_separation:
            return f"the components are too close (Ashman's D {fit.separation:.2f} < {self.min_separation})"
        return ""


def checked(margins_N: FloatArray) -> FloatArray:
    """Return the margins as float64.

    Raises:
        DataError: margins are not finite, or not of shape (N,).
    """
    margins_N = np.asarray(margins_N, dtype=np.float64)
    if margins_N.ndim != 1 or not np.isfinite(margins_N).all():
        raise DataError("margins must be finite and of shape (N,)")
    return margins_N


def to_axis(margins_N: FloatArray, axis: Axis) -> FloatArray:
    """Map margins to the axis of a mixture, shape (N,); each axis is increasing.

    >>> to_axis(np.array([0.0]), "perplexity").round(3).tolist()
    [0.693]
    """
    if axis == "margin":
        return margins_N
    margin_N = np.logaddexp(0.0, margins_N)
    if axis == "perplexity":
        return np.asarray(margin_N)
    # The soft-plus of a very low margin underflows in float64.
    return np.where(margins_N < _SURE, margins_N, np.log(np.maximum(margin_N, np.exp(_SURE))))
