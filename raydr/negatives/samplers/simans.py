"""SimANS: negatives with scores near the positive's."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from raydr.negatives.samplers.base import Draws, FloatArray, RankedSampler, draw_without_replacement, require_scores


class SimANS(RankedSampler):
    """Draws without replacement with weight w_i = exp(−a · (s_i − s₊ + b)²).

    The weight peaks at s_i = s₊ − b, for b > 0 *below* the positive. This is the sign of the authors' code; their paper
    prints −b. A larger a makes a sharper peak. Without a score of the positive, draws are uniform, as in their code.

    Source: Zhou et al., SimANS (EMNLP Industry 2022) (a 0.5, b 0; NQ b 1). Their code draws with replacement, and keeps
    15 of the distinct negatives at random; its distribution differs by .05 to .08 in total variation.

    >>> from raydr.negatives.samplers.base import CandidateList
    >>> candidates = CandidateList(np.array([30.0, 19.0, 0.0]), positive_score=20.0)
    >>> SimANS(a=1.0, b=1.0).sample(candidates, num=1, rng=np.random.default_rng(0)).indices.tolist()
    [1]
    """

    name: Literal["simans"] = "simans"
    a: float = Field(default=0.5, ge=0.0)
    """Sharpness of the peak, in units of 1 / score². The published 0.5 is for inner products in the tens; for cosines
    0.5 · ``model.scale``² is as sharp."""

    b: float = 0.0
    """Distance of the peak below the positive's score."""

    def draw(self, scores: FloatArray, positive_score: float | None, num: int, rng: np.random.Generator) -> Draws:
        if positive_score is not None or not np.isfinite(scores).any():
            require_scores(self.name, scores)
        if positive_score is not None:
            log_weights = -self.a * (scores - positive_score + self.b) ** 2
            return draw_without_replacement(log_weights, num, rng), None
        return rng.permutation(scores.size)[:num].astype(np.int64), None
