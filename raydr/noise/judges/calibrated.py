"""Judges that recalibrate an earlier judge by decisions of people."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from raydr.noise.judges.base import ScoredCandidates, SecondJudge, Verdicts
from raydr.noise.judges.people import DecisionsReader


class CalibratedJudge(SecondJudge, DecisionsReader):
    """Base of the judges that set the threshold of another judge by decisions of people.

    With x the log-odds of a wrong label under the judge ``after`` (see :func:`raydr.noise.reviewed.evidence`),

        P(wrong) = σ(shift + slope · x),

    with the posterior means of shift and slope under priors around 0 and 1, see
    :func:`raydr.noise.reviewed.estimate_quality`. Without decisions the earlier judge is unchanged. No model is run.

    Source: Platt (1999), calibration by a logistic regression.

    >>> Calibrated().judge(ScoredCandidates(np.array([0.9, 0.2]), np.array([0, 1, 2]))).action.tolist()
    ['drop', 'keep']
    """

    reads: ClassVar[Literal["earlier"]] = "earlier"
    score_name: ClassVar[str] = "probability of a wrong label, recalibrated by decisions of people"
    score_is_probability: ClassVar[bool] = True

    unsure: tuple[float, float] = (0.0, 1.0)
    """Range of that judge's probabilities to recalibrate; default: all."""

    wrong_above: float = Field(default=0.5, ge=0.0, le=1.0)
    """Probability of a wrong label above which the pair or candidate is dropped."""

    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        keep_M = candidates.scores_M <= self.wrong_above
        return Verdicts(candidates.scores_M, np.where(keep_M, "keep", "drop"), keep_M.astype(np.float64))


class Calibrated(CalibratedJudge):
    """Drops training pairs that an earlier judge, recalibrated by decisions of people, takes for wrong."""

    subject: ClassVar[Literal["pairs"]] = "pairs"
    flags: ClassVar[str] = "pairs that a judge, recalibrated by decisions of people, takes for wrong"

    name: Literal["calibrated"] = "calibrated"
    after: str = Field(default="npc", min_length=1)
    """Earlier judge to recalibrate."""


class CalibratedNegatives(CalibratedJudge):
    """Drops candidates that an earlier judge, recalibrated by decisions of people, takes for relevant."""

    flags: ClassVar[str] = "candidates that a judge, recalibrated by decisions of people, takes for relevant"

    name: Literal["calibrated_negatives"] = "calibrated_negatives"
    after: str = Field(default="classifier", min_length=1)
    """Earlier judge to recalibrate."""
