"""One detection from pairs that were measured several times, each time against other random passages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from raydr.noise.detectors.base import Detection, Detector, FloatArray, IntArray


def detect_over_draws(
    detector: Detector, perplexities_ND: FloatArray, random_ND: FloatArray, fold_N: IntArray | None = None
) -> Detection:
    """What a detector finds of N pairs that were measured D times: p(clean) is its mean over the draws.

    A pair near the boundary is no longer flagged or not by the luck of one draw, and the share that is flagged varies
    less (docs/experiments/detectors.md).

    Args:
        detector: asked for each draw.
        perplexities_ND: of the pairs.
        random_ND: of the random pair in the place of each, NaN where there is none.
        fold_N: which model measured each, as :meth:`raydr.noise.detectors.base.Detector.detect` takes it.

    Returns:
        The detection; with several draws without a fit, and with a reason only if no draw could be judged.
    """
    found = [
        detector.detect(perplexities_ND[:, at], random_ND[:, at], fold_N) for at in range(perplexities_ND.shape[1])
    ]
    shares = [one.share_mismatched for one in found if one.share_mismatched is not None]
    if len(found) == 1 or not shares:
        return found[0]
    log_posterior_N = np.logaddexp.reduce([one.log_posterior for one in found]) - np.log(len(found))
    log_posterior_N = np.minimum(log_posterior_N, 0.0)
    return replace(
        found[0],
        clean=detector.is_clean(log_posterior_N),
        log_posterior=log_posterior_N,
        fit=None,
        reason="",
        share_mismatched=float(np.mean(shares)),
    )
