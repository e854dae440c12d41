"""Quality of a detector or judge on noise whose truth is known."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from raydr.errors import DataError


@dataclass(frozen=True)
class ReliabilityBin:
    """Predictions with a probability of noise in [low, high) (the last bin includes 1).

    Args:
        low, high: bounds of the bin.
        count: number of predictions in the bin.
        mean_probability: mean of the predictions; None for an empty bin.
        noise_share: share of true noise; None for an empty bin.
    """

    low: float
    high: float
    count: int
    mean_probability: float | None
    noise_share: float | None


@dataclass(frozen=True)
class DetectionReport:
    """Quality of a detection; an undefined figure is None, never 0.

    Args:
        count, num_noisy, num_flagged: numbers of judged, noisy and flagged pairs.
        precision: share of flagged pairs that are noisy; None without flagged pairs.
        recall: share of noisy pairs that are flagged; None without noisy pairs.
        f1: harmonic mean of precision and recall, 2·hits / (flagged + noisy).
        auroc, average_precision: quality of the suspicion as a ranking; None unless both classes occur.
        bins: reliability of the probabilities; empty without probabilities.
        calibration_error: mean |mean_probability − noise_share| over predictions; None without probabilities.
    """

    count: int
    num_noisy: int
    num_flagged: int
    precision: float | None
    recall: float | None
    f1: float | None
    auroc: float | None
    average_precision: float | None
    bins: tuple[ReliabilityBin, ...] = ()
    calibration_error: float | None = None


def report_detection(
    noisy: npt.ArrayLike,
    flagged: npt.ArrayLike,
    suspicion: npt.ArrayLike,
    probability: npt.ArrayLike | None = None,
    num_bins: int = 10,
) -> DetectionReport:
    """Compare flags and suspicions with the truth; noise is the positive class.

    Args:
        noisy: bool, shape (N,), truth.
        flagged: bool, shape (N,), flags of the detector.
        suspicion: float, shape (N,), any scale; higher means more likely noise.
        probability: float in [0, 1], shape (N,), P(noise), if the detector gives it.
        num_bins: number of reliability bins of equal width.

    >>> report = report_detection([True, True, False, False], [True, False, True, False], [4.0, 3.0, 3.5, 1.0])
    >>> report.precision, report.recall, report.auroc
    (0.5, 0.5, 0.75)
    """
    # Reading a config imports judges, and with them this module; scikit-learn is slow to import.
    from sklearn.metrics import average_precision_score, roc_auc_score

    truth_N = np.asarray(noisy, dtype=np.bool_)
    flagged_N = np.asarray(flagged, dtype=np.bool_)
    suspicion_N = np.asarray(suspicion, dtype=np.float64)
    if truth_N.ndim != 1 or not truth_N.shape == flagged_N.shape == suspicion_N.shape:
        raise DataError(
            f"truth, flags and suspicions must have the same shape (N,): {truth_N.shape}, {flagged_N.shape}, "
            f"{suspicion_N.shape}"
        )
    hits, num_noisy, num_flagged = int((truth_N & flagged_N).sum()), int(truth_N.sum()), int(flagged_N.sum())
    both = 0 < num_noisy < len(truth_N)
    bins = () if probability is None else _reliability(truth_N, np.asarray(probability, np.float64), num_bins)
    gaps = [
        part.count * abs(part.mean_probability - part.noise_share)
        for part in bins
        if part.mean_probability is not None and part.noise_share is not None
    ]
    return DetectionReport(
        count=len(truth_N),
        num_noisy=num_noisy,
        num_flagged=num_flagged,
        precision=hits / num_flagged if num_flagged else None,
        recall=hits / num_noisy if num_noisy else None,
        f1=2 * hits / (num_flagged + num_noisy) if num_flagged + num_noisy else None,
        auroc=float(roc_auc_score(truth_N, suspicion_N)) if both else None,
        average_precision=float(average_precision_score(truth_N, suspicion_N)) if both else None,
        bins=bins,
        calibration_error=sum(gaps) / len(truth_N) if gaps else None,
    )


def _reliability(
    truth_N: npt.NDArray[np.bool_], probability_N: npt.NDArray[np.float64], num_bins: int
) -> tuple[ReliabilityBin, ...]:
    if probability_N.shape != truth_N.shape or not ((probability_N >= 0.0) & (probability_N <= 1.0)).all():
        raise DataError(f"probabilities must lie in [0, 1] and have shape {truth_N.shape}, got {probability_N.shape}")
    edges = np.linspace(0.0, 1.0, num_bins + 1)
    bin_N = np.clip(np.digitize(probability_N, edges) - 1, 0, num_bins - 1)
    bins = []
    for number, (low, high) in enumerate(pairwise(edges.tolist())):
        inside_N = bin_N == number
        means = (float(values_N[inside_N].mean()) if inside_N.any() else None for values_N in (probability_N, truth_N))
        bins.append(ReliabilityBin(low, high, int(inside_N.sum()), *means))
    return tuple(bins)
