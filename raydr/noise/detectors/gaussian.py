"""NPC's detector: a two-component Gaussian mixture over the perplexities."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from raydr.noise.detectors.base import Axis, FloatArray, MixtureDetector, MixtureFit, to_axis


def fit_gaussians(
    margins_N: FloatArray,
    axis: Axis,
    variance_floor: float,
    seed: int,
    start_shares: tuple[float, ...] = (),
) -> list[MixtureFit]:
    """Fit two Gaussians on an axis by scikit-learn's EM; return a fit for each start, the likeliest first.

    Sorted values make the fit independent of their order.

    Args:
        margins_N: finite margins.
        axis: axis of the Gaussians.
        variance_floor: share of the sample variance added to each component's variance in every M-step.
        seed: seed of the k-means start.
        start_shares: further EM starts, each with this share of the lowest values as clean.
    """
    # Configs import detectors, and scikit-learn is slow to import.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    axis_N1 = np.sort(to_axis(margins_N, axis))[:, None]
    floor = variance_floor * float(axis_N1.var())
    common = {"reg_covar": floor, "tol": 1e-5, "max_iter": 1000}
    starts = [GaussianMixture(2, random_state=seed, **common)]
    for share in start_shares:
        split = min(max(round(share * len(axis_N1)), 1), len(axis_N1) - 1)
        halves = axis_N1[:split], axis_N1[split:]
        start = {"weights_init": [share, 1.0 - share], "means_init": [half.mean(axis=0) for half in halves]}
        start["precisions_init"] = [[[1.0 / (half.var() + floor)]] for half in halves]
        starts.append(GaussianMixture(2, **start, **common))
    with warnings.catch_warnings():
        # Overlapping components converge slowly, and the tests of the fit reject them.
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixtures = [start.fit(axis_N1) for start in starts]
        single = GaussianMixture(1, reg_covar=floor).fit(axis_N1)
    bic_single = float(single.bic(axis_N1))
    fits = []
    for mixture in mixtures:
        clean, noisy = np.argsort(mixture.means_[:, 0]).tolist()
        fits.append(
            MixtureFit(
                axis=axis,
                weights=(float(mixture.weights_[clean]), float(mixture.weights_[noisy])),
                means=(float(mixture.means_[clean, 0]), float(mixture.means_[noisy, 0])),
                variances=(float(mixture.covariances_[clean, 0, 0]), float(mixture.covariances_[noisy, 0, 0])),
                bic_single=bic_single,
                bic_mixture=float(mixture.bic(axis_N1)),
            )
        )
    return sorted(fits, key=lambda fit: fit.bic_mixture)


class GaussianDetector(MixtureDetector):
    """The paper's detector: two Gaussians on the perplexities log(1 + e^margin).

    ŷ = [p(κ | PPL) > λ], with κ the component of lower mean. The posterior is computed in log space and kept monotone.
    Clean perplexities of strong encoders are near 0 with a long tail, so that a Gaussian flags too many pairs.
    :class:`raydr.noise.detectors.anchored.AnchoredDetector` does not.

    Source: Zhang et al. (EMNLP Findings 2023); the variance floor, the seed and the bimodality tests are ours.

    >>> rng = np.random.default_rng(0)
    >>> perplexities_N = np.abs(np.concatenate([rng.normal(1.0, 0.3, 300), rng.normal(6.0, 1.0, 100)]))
    >>> detection = GaussianDetector().detect(np.log(np.expm1(perplexities_N)))
    >>> int((~detection.clean).sum()), detection.reason
    (99, '')
    """

    name: Literal["gaussian"] = "gaussian"
    variance_floor: float = Field(default=1e-4, gt=0.0, le=0.1)
    """Share of the sample variance added to each component's variance."""

    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of EM's start."""

    def fit(self, margins_N: FloatArray, random_R: FloatArray) -> MixtureFit:
        (fit,) = fit_gaussians(margins_N, "perplexity", self.variance_floor, self.seed)
        return replace(fit, reason=self.why_not_bimodal(fit))
