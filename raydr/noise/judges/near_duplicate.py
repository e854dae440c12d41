"""A negative that is nearly the positive passage itself is no negative."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from raydr.errors import ConfigError
from raydr.noise.judges.asked import Asked, AskedModels, Embedder
from raydr.noise.judges.base import ScoredCandidates, SuspicionJudge, Verdicts
from raydr.noise.judges.margin import MarginLimit, MarginMode


class NearDuplicate(MarginLimit, SuspicionJudge):
    """Drops a negative that is nearly the positive, and answers the query about as well.

    Suspicious iff c > ``likeness`` and g > g⁺ − margin·|g⁺|, with g the guide's similarity with the query and
    c = max over the query's positives p⁺ of s(p⁺, p) / s(p⁺, p⁺), the guide's similarity of two passages: a cosine, or
    a share of what the positive has with itself. The verdict's score is the smaller of c − ``likeness`` and of what g
    is above its limit.

    Copies and other cuts of one text are the false negatives that a corpus brings by itself: chunks that overlap, pages
    that quote each other. A chunk from which the answer was cut away is as like the positive as one that has it, which
    is why the query is asked too. No source: measured in docs/experiments/sieve.md.

    >>> rule = NearDuplicate(likeness=0.8, margin=0.05)
    >>> likeness_M = np.array([0.9, 0.9, 0.5])
    >>> rule.judge(ScoredCandidates.of_one([0.70, 0.50, 0.75], positive_score=0.7, likeness=likeness_M)).action.tolist()
    ['drop', 'keep', 'keep']
    """

    reads: ClassVar[Literal["guide"]] = "guide"
    reads_likeness: ClassVar[bool] = True

    flags: ClassVar[str] = "candidates that are nearly the annotated passage and answer the query about as well"
    score_name: ClassVar[str] = "likeness and similarity above their limits, the smaller"

    name: Literal["near_duplicate"] = "near_duplicate"
    mode: MarginMode = "relative"
    margin: float = 0.05

    likeness: float = Field(default=0.8, ge=0.0, le=1.0)
    """How like a positive a candidate must be: the guide's similarity of the two passages, as a share of the positive's
    with itself."""

    def asks(self, models: AskedModels) -> Asked:
        score = models.guide.score
        if score.query_vectors != score.passage_vectors:
            raise ConfigError(
                f"judge {self.name} compares passages with passages, and judge.guide.score {score.name!r} reads "
                "a query otherwise than a passage; allowed: dual, sum_of_max"
            )
        return Embedder(models.guide)

    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        limits_Q = self.limits(candidates.positives(self.name))
        excess_M = candidates.scores_M - limits_Q[candidates.query_M()]
        suspicion_M = np.minimum(candidates.likeness(self.name) - self.likeness, excess_M)
        return self.verdicts(suspicion_M, suspicion_M > 0.0)
