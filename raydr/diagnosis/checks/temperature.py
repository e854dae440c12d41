"""A scale under which the softmax over candidates does not say what the similarities know."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from raydr.diagnosis.checks.base import Check, Finding
from raydr.diagnosis.evidence import Evidence, FloatArray
from raydr.diagnosis.intervals import CONFIDENCE
from raydr.diagnosis.progress import Progress
from raydr.evaluation.significance import bootstrap_means

#: Scales that are tried, a tenth apart.
_SCALES = np.geomspace(1e-3, 1e5, 195)
#: Similarities that hold less of the most that C candidates have, log C, know nothing.
_KNOWS = 0.05


class Temperature(Check):
    """What a softmax with scale τ tells of the right one of C candidates is log C + log p(positive), in nats.

    The severity is the share of what the best τ tells of held-out queries that the configured one does not; the less of
    both models that know something, since training fits similarities to its scale. A model that has learnt next to
    nothing has not: there it is no cause.

    >>> rng = np.random.default_rng(0)
    >>> cosines_QC = rng.normal(0.1, 0.1, (200, 64)) + np.eye(64)[0] * 0.4
    >>> [Temperature().examine(Evidence(similarities={"trained": cosines_QC}, scale=scale)).level
    ...     for scale in (0.5, 40.0, 1000.0)]
    ['fault', 'ok', 'fault']
    """

    compares: ClassVar[str] = "the configured scale with the one that fits held-out queries best"
    needs: ClassVar[str] = "no model tells held-out passages apart"

    name: Literal["temperature"] = "temperature"

    def examine(self, evidence: Evidence) -> Finding | None:
        found = {reader: _lost(similarities, evidence.scale) for reader, similarities in evidence.similarities.items()}
        known = {reader: one for reader, one in found.items() if one is not None}
        if not known:
            return None
        progress = Progress.of(evidence.training)
        reader, (severity, lost, best) = min(known.items(), key=lambda one: one[1])
        lost, best = min(max(lost, 0.0), 1.0), float(f"{best:.2g}")
        return self.finding(
            severity,
            f"model.scale {evidence.scale:g} loses {lost:.0%} of what the similarities of the {reader} model "
            f"tell about held-out queries; {best:g} would fit them best",
            f"model.scale={best:g}",
            rank="symptom" if progress is not None and progress.left else "cause",
        )


def _lost(similarities_QC: FloatArray, scale: float) -> tuple[float, float, float] | None:
    """The share that is lost, its lower end first, and the best scale; None if there is nothing to lose."""
    if len(similarities_QC) < 4 or similarities_QC.shape[1] < 2:
        return None
    told_SQ = np.stack([_told(similarities_QC, one) for one in _SCALES])
    at = int(told_SQ.mean(axis=1).argmax())
    told_Q2 = np.stack([_told(similarities_QC, scale), told_SQ[at]], axis=1)
    means_S2 = bootstrap_means(told_Q2, 2_000, seed=0)
    tail = (1 - CONFIDENCE) / 2
    if np.quantile(means_S2[:, 1], tail) < _KNOWS * np.log(similarities_QC.shape[1]):
        return None
    lost_S = 1.0 - means_S2[:, 0] / means_S2[:, 1]
    mean_2 = told_Q2.mean(axis=0)
    return float(np.quantile(lost_S, tail)), float(1.0 - mean_2[0] / mean_2[1]), float(_SCALES[at])


def _told(similarities_QC: FloatArray, scale: float) -> FloatArray:
    logits_QC = scale * similarities_QC
    log_sum_Q = np.logaddexp.reduce(logits_QC, axis=1)
    return np.asarray(np.log(similarities_QC.shape[1]) + logits_QC[:, 0] - log_sum_Q)
