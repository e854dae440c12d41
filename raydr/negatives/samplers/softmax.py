"""Hard negatives drawn from the model's distribution over the mined list."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from raydr.negatives.samplers.base import Draws, FloatArray, RankedSampler, draw_without_replacement, require_scores


class Softmax(RankedSampler):
    """Draws with probability q(c) ∝ exp(smoothing · s_c) over the range of ranks.

    Without replacement (the default) the negatives are distinct. With replacement draws are i.i.d., a candidate may be
    drawn several times, and log q is returned for the loss ``corrected_nce``. q is normalised over the range, not over
    the corpus.

    Source: Zhang and Stratos (NAACL 2021).

    >>> from raydr.negatives.samplers.base import CandidateList
    >>> candidates = CandidateList(np.array([100.0, 0.0, -100.0]))
    >>> Softmax().sample(candidates, num=2, rng=np.random.default_rng(0)).indices.tolist()
    [0, 1]
    """

    name: Literal["softmax"] = "softmax"
    smoothing: float = Field(default=1.0, ge=0.0)
    """Factor of the scores; 0 draws uniformly, a large factor nearly the top. The scores of a dense run are
    similarities without τ: the value of ``model.scale`` draws ∝ exp(τ · similarity), the model's distribution."""

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
        # side="right" skips candidates of probability 0; minimum, since rounding may exceed the last candidate.
        indices = np.searchsorted(cumulative, rng.random(num) * cumulative[-1], side="right")
        indices = np.minimum(indices, scores.size - 1).astype(np.int64)
        return indices, shifted[indices] - np.log(cumulative[-1])
