"""Detector with better calibration: a Gaussian mixture on the margins."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field

from raydr.noise.detectors.base import FloatArray, MixtureDetector, MixtureFit
from raydr.noise.detectors.gaussian import fit_gaussians

#: Shares of clean pairs from which EM starts, besides k-means.
START_SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)


class CalibratedDetector(MixtureDetector):
    """Two Gaussians on the margin, on which clean pairs are nearly Gaussian.

    The paper's perplexity is the soft-plus of the margin. It concentrates clean pairs near 0; a Gaussian fits the
    narrow peak and flags its tail. The axis ``log`` is the logarithm of the perplexity. EM starts from k-means and from
    several splits, so that rare noise is detected. The fit is the likeliest of the bimodal fits: the likeliest of all
    may be a wide Gaussian around a narrow one.

    Source: ours; the mixture model is NPC's.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> margins_N = np.concatenate([rng.normal(-6.0, 2.0, 900), rng.normal(4.0, 1.5, 100)])
    >>> detection = CalibratedDetector().detect(margins_N)
    >>> int((~detection.clean)[:900].sum()), int((~detection.clean)[900:].sum())
    (0, 98)
    """

    name: Literal["calibrated"] = "calibrated"
    axis: Literal["margin", "log"] = "margin"
    """Axis on which the Gaussians are fitted."""

    variance_floor: float = Field(default=1e-4, gt=0.0, le=0.1)
    """Share of the sample variance added to each component's variance."""

    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of EM's k-means start."""

    min_separation: float = Field(default=2.0, ge=0.0)
    """Minimum distance of the components, as Ashman's D."""

    def fit(self, margins_N: FloatArray, random_R: FloatArray) -> MixtureFit:
        fits = [
            replace(fit, reason=self.why_not_bimodal(fit))
            for fit in fit_gaussians(margins_N, self.axis, self.variance_floor, self.seed, START_SHARES)
        ]
        return next((fit for fit in fits if fit.bimodal), fits[0])
