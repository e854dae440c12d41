"""Hard negatives drawn from the model's own distribution over the mined list."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from raydr.negatives.samplers.base import Draws, FloatArray, RankedSampler, draw_without_replacement, require_scores


class Softmax(RankedSampler):
    """Draws with probability q(c) ∝ exp(smoothing · s_c) over the rank window.

    Without replacement (the default) all drawn negatives differ. With replacement the draws are i.i.d., and a candidate
    may be drawn several times. log q is returned, as the loss ``corrected_nce`` needs. q is normalised over the window,
    not over the corpus.

    Source: Zhang and Stratos (NAACL 2021).

    >>> from raydr.negatives.samplers.base import CandidateList
    >>> candidates = CandidateList(np.array([100.0, 0.0, -100.0]))
    >>> Softmax().sample(candidates, num=2, rng=np.random.default_rng(0)).indices.tolist()
    [0, 1]
    """

    name: Literal["softmax"] = "softmax"
    smoothing: float = Field(default=1.0, ge=0.0)
    """Multiplier of the scores; 0 is uniform, large is close to the top. The scores of a dense run are similarities
    without τ: ``model.scale`` here draws ∝ exp(τ · similarity), the model's own distribution."""

    with_replacement: bool = False
    """Draw i.i.d. and return log q."""

    @property
    def tells_draw_probabilities(self) -> bool:
        return self.with_replacement

    def draw(self, scores: FloatArray, positive_score: float | None, num: int, rng: np.random.Generator) -> Draws:
        logits = np.zeros_like(scores)
        if self.smoothing:
            require_scores(self.name, scores)
            logits = self.smoothing * scores
        if not self.with_replacement:
            return draw_without_replacement(logits, num, rng), None
        shifted = logits - logits.max()
        cumulative = np.exp(shifted).cumsum()
        # side="right" never lands on a candidate of probability 0; minimum: rounding may reach the very end.
        indices = np.searchsorted(cumulative, rng.random(num) * cumulative[-1], side="right")
        indices = np.minimum(indices, scores.size - 1).astype(np.int64)
        return indices, shifted[indices] - np.log(cumulative[-1])
