"""A better-calibrated detector: the Gaussian mixture on a transformed perplexity."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field

from raydr.noise.detectors.base import FloatArray, MixtureDetector, MixtureFit
from raydr.noise.detectors.gaussian import fit_gaussians

#: Shares of clean pairs that EM starts from, besides k-means.
START_SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)


class CalibratedDetector(MixtureDetector):
    """Two Gaussians fitted where the perplexities of clean pairs look Gaussian.

    The perplexity is a soft-plus of the margin z = logsumexp(random scores) − s⁺, PPL = log(1 + e^z): it squeezes all
    clean pairs against 0, and a Gaussian on it has to be as narrow as the pile and takes its tail for noise. The axis
    ``margin`` undoes the soft-plus, z = log(e^PPL − 1), and leaves the scores' own, near-Gaussian spread; ``log`` is
    the plain logarithm. EM starts from k-means and from several splits, so that rare noise is found too; of the
    fits with two groups the likeliest is taken: the likeliest of all may be a wide Gaussian around a narrow one.

    Source: ours; the model around it is NPC's.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> margins_N = np.concatenate([rng.normal(-6.0, 2.0, 900), rng.normal(4.0, 1.5, 100)])
    >>> detection = CalibratedDetector().detect(np.logaddexp(0.0, margins_N))
    >>> int((~detection.clean)[:900].sum()), int((~detection.clean)[900:].sum())
    (0, 98)
    """

    name: Literal["calibrated"] = "calibrated"
    axis: Literal["margin", "log"] = "margin"
    """Where the Gaussians are fitted."""

    variance_floor: float = Field(default=1e-4, gt=0.0, le=0.1)
    """Share of the sample variance added to each component's variance."""

    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of EM's k-means start."""

    min_separation: float = Field(default=2.0, ge=0.0)
    """Smallest distance of the components, as Ashman's D."""

    def fit(self, perplexities_N: FloatArray, random_R: FloatArray) -> MixtureFit:
        fits = [
            replace(fit, reason=self.why_not_bimodal(fit))
            for fit in fit_gaussians(perplexities_N, self.axis, self.variance_floor, self.seed, START_SHARES)
        ]
        return next((fit for fit in fits if fit.bimodal), fits[0])
