"""The highest-ranked candidates."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from raydr.negatives.samplers.base import CandidateList, Drawn, Draws, FloatArray, RankedSampler


class Top(RankedSampler):
    """The first ``num`` candidates of the range of ranks, the same in every epoch.

    Source: greedy top of Zhang and Stratos (NAACL 2021), top-n of Park et al. (HCLT 2023).

    >>> from raydr.negatives.samplers.base import CandidateList
    >>> candidates = CandidateList(np.array([9.0, 8.0, 7.0, 6.0]))
    >>> Top(first_rank=2).sample(candidates, num=2, rng=np.random.default_rng(0)).indices.tolist()
    [1, 2]
    """

    name: Literal["top"] = "top"
    fill: bool = True
    """Fill a list that is too short with random passages. If false, the query has fewer negatives, which the passage
    sieve requires."""

    def sample(self, candidates: CandidateList, num: int, rng: np.random.Generator) -> Drawn:
        drawn = super().sample(candidates, num, rng)
        return drawn if self.fill else replace(drawn, num_missing=0, num_absent=drawn.num_missing)

    def draw(self, scores: FloatArray, positive_score: float | None, num: int, rng: np.random.Generator) -> Draws:
        return np.arange(min(num, scores.size), dtype=np.int64), None
