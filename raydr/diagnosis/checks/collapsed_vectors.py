"""Vectors that differ in few directions."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from raydr.diagnosis.checks.base import Check, Finding, Rank
from raydr.diagnosis.evidence import Evidence, FloatArray


class CollapsedVectors(Check):
    """In r dimensions the largest of N random cosines is about √(2 ln N / r): below r = 2 ln N some of N passages are
    by chance as close to a query as its own.

    That all have a large part in common does not matter: raw encoders rank with mean cosines of 0.9.
    r is the effective rank, the exponential of the entropy of the spectrum (Roy and Vetterli, EUSIPCO 2007), of centred
    vectors of length 1; the larger one of two halves of the passages.

    >>> flat_PD = np.random.default_rng(0).normal(size=(400, 2)) @ np.random.default_rng(1).normal(size=(2, 32))
    >>> CollapsedVectors().examine(Evidence(vectors_PD=flat_PD, num_passages=5000)).level
    'fault'
    """

    compares: ClassVar[str] = "the effective rank of passage vectors with what as many passages need"
    needs: ClassVar[str] = "passages have several vectors, or none was measured"
    rank: ClassVar[Rank] = "symptom"

    name: Literal["collapsed_vectors"] = "collapsed_vectors"

    def examine(self, evidence: Evidence) -> Finding | None:
        vectors_PD = evidence.vectors_PD
        if vectors_PD.ndim != 2 or len(vectors_PD) < 4:
            return None
        unit_PD = vectors_PD / np.maximum(np.linalg.norm(vectors_PD, axis=1, keepdims=True), 1e-12)
        num = len(unit_PD)
        cosine = float((np.square(unit_PD.sum(axis=0)).sum() - num) / (num * (num - 1)))
        rank = max(_effective_rank(unit_PD[0::2]), _effective_rank(unit_PD[1::2]))
        needed = 2.0 * np.log(max(evidence.num_passages, 2))
        return self.finding(
            1.0 - rank / needed,
            f"passage vectors have the effective rank {rank:.1f} of {unit_PD.shape[1]}, {evidence.num_passages:,} "
            f"passages need {needed:.0f}; two random ones have the mean cosine {cosine:.2f}",
            advice="a lower train.optimizer.learning_rate, more negatives (train.batch_size), a wider model.projection",
        )


def _effective_rank(vectors_PD: FloatArray) -> float:
    spectrum = np.square(np.linalg.svd(vectors_PD - vectors_PD.mean(axis=0), compute_uv=False))
    shares = spectrum[spectrum > 0] / max(float(spectrum.sum()), 1e-300)
    return float(np.exp(-(shares * np.log(shares)).sum()))
