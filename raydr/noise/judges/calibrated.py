"""Judges that drop as many labels as decisions of people warrant."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from raydr.noise.decisions import Decisions, Label
from raydr.noise.judges.base import ScoredCandidates, SecondJudge, Verdicts
from raydr.noise.judges.people import DecisionsReader


class CalibratedJudge(SecondJudge, DecisionsReader):
    """Base of the judges that set the threshold of another judge by decisions of people.

    They drop the most suspicious labels of the judge ``after``, as many as decisions warrant, see
    :mod:`raydr.noise.warranty`. With few decisions they drop nothing. They run no model.

    >>> Calibrated().judge(ScoredCandidates(np.array([0.9, 0.2]), np.array([0, 1, 2]))).action.tolist()
    ['drop', 'keep']
    """

    reads: ClassVar[Literal["earlier"]] = "earlier"
    score_name: ClassVar[str] = "suspicion of the judge before, above 0.5 where decisions of people warrant a drop"

    max_right_dropped: float = Field(default=0.05, gt=0.0, lt=1.0)
    """Maximum of the share of right labels among the dropped pairs or candidates."""

    confidence: float = Field(default=0.95, gt=0.0, lt=1.0)
    """Probability, over the random order of the review, that the drops keep to ``max_right_dropped``."""

    def settled(self, decisions: Decisions, split: str) -> dict[Label, bool]:
        return decisions.settled(self.subject, split, unsure_is_right=True)

    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        keep_M = candidates.scores_M <= 0.5
        return Verdicts(candidates.scores_M, np.where(keep_M, "keep", "drop"), keep_M.astype(np.float64))


class Calibrated(CalibratedJudge):
    """Drops the training pairs that an earlier judge suspects most, as many as decisions of people warrant."""

    subject: ClassVar[Literal["pairs"]] = "pairs"
    flags: ClassVar[str] = "the pairs that a judge suspects most, as many as decisions of people warrant"

    name: Literal["calibrated"] = "calibrated"
    after: str = Field(default="npc", min_length=1)
    """Earlier judge, whose suspicion ranks the pairs."""


class CalibratedNegatives(CalibratedJudge):
    """Drops the candidates that an earlier judge suspects most, as many as decisions of people warrant."""

    flags: ClassVar[str] = "the candidates that a judge suspects most, as many as decisions of people warrant"

    name: Literal["calibrated_negatives"] = "calibrated_negatives"
    after: str = Field(default="classifier", min_length=1)
    """Earlier judge, whose suspicion ranks the candidates."""
