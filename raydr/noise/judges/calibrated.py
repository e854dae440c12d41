"""An earlier judge, corrected by the few of its labels that people have decided."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from raydr.noise.judges.base import ScoredCandidates, SecondJudge, Verdicts
from raydr.noise.judges.people import DecisionsReader


class CalibratedJudge(SecondJudge, DecisionsReader):
    """Base of the judges that let people's decisions say where flagging begins.

    With x the log-odds of the label being wrong that the judge ``after`` gives (see
    :func:`raydr.noise.reviewed.evidence`),

        P(wrong) = σ(shift + slope · x),

    shift and slope being the means of what the decisions leave of the priors around 0 and 1, see
    :func:`raydr.noise.reviewed.estimate_quality`: without decisions it is that judge. No model is asked.

    Source: Platt (1999), calibration by a logistic regression.

    >>> Calibrated().judge(ScoredCandidates(np.array([0.9, 0.2]), np.array([0, 1, 2]))).action.tolist()
    ['drop', 'keep']
    """

    reads: ClassVar[Literal["earlier"]] = "earlier"
    score_name: ClassVar[str] = "probability of the label being wrong, as people have corrected it"
    score_is_probability: ClassVar[bool] = True

    unsure: tuple[float, float] = (0.0, 1.0)
    """Which of that judge's probabilities are corrected: by default all."""

    wrong_above: float = Field(default=0.5, ge=0.0, le=1.0)
    """Probability above which the pair, or the candidate, is dropped."""

    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        keep_M = candidates.scores_M <= self.wrong_above
        return Verdicts(candidates.scores_M, np.where(keep_M, "keep", "drop"), keep_M.astype(np.float64))


class Calibrated(CalibratedJudge):
    """Drops the training pairs that an earlier judge, as people have corrected it, takes for wrong."""

    subject: ClassVar[Literal["pairs"]] = "pairs"
    flags: ClassVar[str] = "pairs that a judge takes for wrong, as people have corrected it"

    name: Literal["calibrated"] = "calibrated"
    after: str = Field(default="npc", min_length=1)
    """The earlier judge of the list that is corrected."""


class CalibratedNegatives(CalibratedJudge):
    """Drops the candidates that an earlier judge, as people have corrected it, takes for relevant."""

    flags: ClassVar[str] = "candidates that a judge takes for relevant, as people have corrected it"

    name: Literal["calibrated_negatives"] = "calibrated_negatives"
    after: str = Field(default="classifier", min_length=1)
    """The earlier judge of the list that is corrected."""
