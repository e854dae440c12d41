"""Consistency filter: an annotated passage must outrank a random sample of passages."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from raydr.noise.judges.base import SampleJudge, ScoredCandidates, Verdicts


class Consistency(SampleJudge):
    """Keeps a training pair iff its passage ranks in the top k among a random sample of passages.

    rank = 1 + number of sampled passages that score strictly above the positive, so that its copies do not count. The
    score of a verdict is the rank.

    Source: E5 (Wang et al., 2022; k 2, a sample of one million); the script of Nomic's contrastors.

    >>> judge = Consistency(top_k=2)
    >>> judge.judge(ScoredCandidates.of_query([0.9, 0.8, 0.1], positive_score=0.5)).action.tolist()
    ['drop']
    """

    flags: ClassVar[str] = "pairs whose passage ranks low in a random sample: the larger the sample, the more"
    score_name: ClassVar[str] = "rank in the sample"

    name: Literal["consistency"] = "consistency"
    top_k: int = Field(default=2, ge=1)
    """Maximum of the rank of a kept pair."""

    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        positive_Q = candidates.positives(self.name)
        above_M = candidates.scores_M > positive_Q[candidates.query_M()]
        rank_Q = 1.0 + candidates.sum_Q(above_M.astype(np.float64))
        keep_Q = rank_Q <= self.top_k
        return Verdicts(rank_Q, np.where(keep_Q, "keep", "drop"), keep_Q.astype(np.float64))
