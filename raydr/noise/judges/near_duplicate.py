"""Judge that flags near-duplicates of the positive."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from raydr.errors import ConfigError
from raydr.noise.judges.asked import Asked, AskedModels, Embedder
from raydr.noise.judges.base import ScoredCandidates, SuspicionJudge, Verdicts
from raydr.noise.judges.margin import MarginLimit, MarginMode


class NearDuplicate(MarginLimit, SuspicionJudge):
    """Drops a negative that nearly equals the positive and answers the query about as well.

    A negative p is suspicious iff c > ``likeness`` and g > g⁺ − margin·|g⁺|. g is the guide's similarity of query and
    passage. c is the maximum over the query's positives p⁺ of s(p⁺, p) / s(p⁺, p⁺), with s the guide's similarity of
    two passages. The score of a verdict is the smaller of c − ``likeness`` and the excess of g.

    Every corpus contains near-copies, such as overlapping chunks, and pages that quote each other. A chunk without the
    answer is as like the positive as a chunk with it, so that the similarity to the query counts too. No source:
    measured in docs/experiments/sieve.md.

    >>> rule = NearDuplicate(likeness=0.8, margin=0.05)
    >>> likeness_M = np.array([0.9, 0.9, 0.5])
    >>> candidates = ScoredCandidates.of_query([0.70, 0.50, 0.75], positive_score=0.7, likeness=likeness_M)
    >>> rule.judge(candidates).action.tolist()
    ['drop', 'keep', 'keep']
    """

    reads: ClassVar[Literal["guide"]] = "guide"
    reads_likeness: ClassVar[bool] = True

    flags: ClassVar[str] = "candidates that nearly equal the annotated passage and answer the query about as well"
    score_name: ClassVar[str] = "smaller excess of likeness and similarity over their limits"

    name: Literal["near_duplicate"] = "near_duplicate"
    mode: MarginMode = "relative"
    margin: float = 0.05

    likeness: float = Field(default=0.8, ge=0.0, le=1.0)
    """Minimum of the likeness to a positive: the guide's similarity of the two passages, as a share of the positive's
    similarity with itself."""

    def asks(self, models: AskedModels) -> Asked:
        score = models.guide.score
        if score.query_vectors != score.passage_vectors:
            raise ConfigError(
                f"judge {self.name} compares passages with passages, but judge.guide.score {score.name!r} encodes "
                "queries and passages differently; allowed: dual, sum_of_max"
            )
        return Embedder(models.guide)

    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        limits_Q = self.limits(candidates.positives(self.name))
        excess_M = candidates.scores_M - limits_Q[candidates.query_M()]
        suspicion_M = np.minimum(candidates.likeness(self.name) - self.likeness, excess_M)
        return self.verdicts(suspicion_M, suspicion_M > 0.0)
