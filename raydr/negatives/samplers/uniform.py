"""Candidates drawn uniformly from the mined list."""

from __future__ import annotations

from typing import Literal

import numpy as np

from raydr.negatives.samplers.base import Draws, FloatArray, RankedSampler


class Uniform(RankedSampler):
    """Uniform draws from the range of ranks, without replacement, independent of scores.

    Source: the sampling of DPR, ANCE and Tevatron from a mined list.

    >>> from raydr.negatives.samplers.base import CandidateList
    >>> candidates = CandidateList(np.array([9.0, 8.0, 7.0, 6.0]))
    >>> sorted(Uniform(last_rank=3).sample(candidates, num=3, rng=np.random.default_rng(0)).indices.tolist())
    [0, 1, 2]
    """

    name: Literal["uniform"] = "uniform"

    def draw(self, scores: FloatArray, positive_score: float | None, num: int, rng: np.random.Generator) -> Draws:
        return rng.permutation(scores.size)[:num].astype(np.int64), None
