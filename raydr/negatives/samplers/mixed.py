"""A mixture of hard negatives and random passages of the corpus."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from raydr.component import Pluggable
from raydr.negatives.samplers.base import CandidateList, Drawn, Sampler
from raydr.negatives.samplers.softmax import Softmax


class Mixed(Sampler):
    """A share of the negatives uniformly from the whole corpus, the others from another sampler.

    num_random = ⌊random_share · num⌋: with 0 all negatives are hard, with 1 all are random. The caller draws the random
    passages. Mixed-p of the paper is ``random_share`` 1 − p/100; the paper recommends p = 50.

    Source: Zhang and Stratos (NAACL 2021).

    >>> drawn = Mixed(random_share=0.5).sample(CandidateList(np.zeros(10)), num=5, rng=np.random.default_rng(0))
    >>> drawn.num_random, drawn.indices.size
    (2, 3)
    """

    name: Literal["mixed"] = "mixed"
    random_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of random passages."""

    hard: Annotated[Sampler, Pluggable()] = Softmax()
    """The sampler of the hard negatives."""

    @property
    def tells_draw_probabilities(self) -> bool:
        return self.random_share == 1 or self.hard.tells_draw_probabilities

    def sample(self, candidates: CandidateList, num: int, rng: np.random.Generator) -> Drawn:
        # 1e-9, since 0.29 · 100 is 28.999… in floating point.
        num_random = math.floor(self.random_share * num + 1e-9)
        drawn = self.hard.sample(candidates, num - num_random, rng)
        return replace(drawn, num_random=drawn.num_random + num_random)
