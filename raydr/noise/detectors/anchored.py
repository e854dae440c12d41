"""Detector by a mixture whose mismatched component is anchored at random pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from raydr.noise.detectors.base import FloatArray, MixtureDetector, MixtureFit
from raydr.noise.detectors.calibrated import START_SHARES

#: Maximum of EM's steps, and smallest rise of the mean log-likelihood with which it continues.
_NUM_STEPS, _TOLERANCE = 1000, 1e-8


class AnchoredDetector(MixtureDetector):
    """Two Gaussians on the margin, with the mismatched component near the random pairs.

    If clean pairs are skewed, one of two free Gaussians fits their tail, and splits clean data. Random pairs resemble
    mismatched pairs, since their passages were meant for other queries. Their margins cost no further encoding. With
    mean m and variance v of the margins of random pairs, the mixture of the margins z is

        f(z) = w · N(z; μ₀, σ₀²) + (1 − w) · N(z; μ₁, v),   m − max_shift · √v ≤ μ₁ ≤ m,

    with w, μ₀, σ₀² and μ₁ fitted by EM. μ₁ may be below m: a retriever trained on mismatched pairs has lower margins on
    them than on random pairs. If few pairs are mismatched and the components overlap, a single Gaussian fits as well,
    and no pair is flagged.

    Source: ours; the mixture model is NPC's, the empirical null Efron's (JASA 2004).

    >>> rng = np.random.default_rng(0)
    >>> margins_N = np.concatenate([rng.normal(-2.0, 2.0, 900), rng.normal(4.0, 1.0, 100)])
    >>> random_R = rng.normal(4.5, 1.0, 1000)
    >>> detection = AnchoredDetector().detect(margins_N, random_R)
    >>> int((~detection.clean)[:900].sum()), int((~detection.clean)[900:].sum())
    (10, 94)
    """

    reads_random_pairs: ClassVar[bool] = True

    name: Literal["anchored"] = "anchored"
    max_shift: float = Field(default=1.0, ge=0.0)
    """Maximum distance of the mean of mismatched pairs below that of random pairs, in standard deviations. 0 suits an
    encoder that was not trained on the pairs."""

    min_separation: float = Field(default=0.75, ge=0.0)
    """Minimum distance of the components, as Ashman's D; smaller than in other detectors, since the anchor identifies
    overlapping components."""

    variance_floor: float = Field(default=1e-4, gt=0.0, le=0.1)
    """Share of the sample variance added to each component's variance."""

    def fit(self, margins_N: FloatArray, random_R: FloatArray) -> MixtureFit:
        axis_N, axis_R = np.sort(margins_N), np.sort(random_R)
        fits = [self._fit_from(share, axis_N, axis_R) for share in START_SHARES]
        fit = min(fits, key=lambda fit: fit.bic_mixture)
        return replace(fit, reason=self.why_not_bimodal(fit))

    def _fit_from(self, share: float, axis_N: FloatArray, axis_R: FloatArray) -> MixtureFit:
        """Run EM from a start with a share of the lowest values as clean."""
        num, variance = len(axis_N), float(axis_N.var())
        floor = self.variance_floor * variance
        highest, variance_1 = float(axis_R.mean()), float(axis_R.var()) + floor
        lowest = highest - self.max_shift * float(np.sqrt(variance_1))
        low_N = axis_N[: max(1, round(share * num))]
        mean_0, variance_0, weight = float(low_N.mean()), float(low_N.var()) + floor, share
        mean_1, before = highest, -np.inf
        for _ in range(_NUM_STEPS):
            fit = MixtureFit("margin", (weight, 1.0 - weight), (mean_0, mean_1), (variance_0, variance_1), 0.0, 0.0)
            logs_2N = fit.log_densities(axis_N)
            total_N = np.logaddexp(*logs_2N)
            likelihood = float(total_N.sum())
            if likelihood - before < _TOLERANCE * num:
                break
            before = likelihood
            clean_N, noisy_N = np.exp(logs_2N - total_N)
            # An empty component keeps a small weight, so that it can grow again.
            weight = float(np.clip(clean_N.mean(), 1e-6, 1.0 - 1e-6))
            mean_0 = float((clean_N * axis_N).sum() / max(clean_N.sum(), 1e-6))
            variance_0 = float((clean_N * (axis_N - mean_0) ** 2).sum() / max(clean_N.sum(), 1e-6)) + floor
            mean_1 = float(np.clip((noisy_N * axis_N).sum() / max(noisy_N.sum(), 1e-6), lowest, highest))
        single = -0.5 * num * (np.log(2.0 * np.pi * (variance + floor)) + variance / (variance + floor))
        return replace(
            fit, bic_single=2.0 * np.log(num) - 2.0 * single, bic_mixture=4.0 * np.log(num) - 2.0 * likelihood
        )
