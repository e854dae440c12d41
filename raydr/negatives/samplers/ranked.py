"""Samplers that draw from a window of ranks, and their mixture with random passages of the corpus."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from raydr.component import Pluggable
from raydr.errors import DataError
from raydr.negatives.samplers.base import CandidateList, Drawn, Draws, FloatArray, IndexArray, Sampler


class RankedSampler(Sampler):
    """Base of the samplers that draw from a window of ranks; subclasses implement :meth:`draw`."""

    first_rank: int = Field(default=1, ge=1)
    """First rank that may be drawn, counted from 1: the top ranks hold most false negatives."""

    last_rank: int | None = Field(default=None, ge=1)
    """Last rank that may be drawn, None for the end of the list."""

    @model_validator(mode="after")
    def _window_is_not_empty(self) -> RankedSampler:
        if self.last_rank is not None and self.last_rank < self.first_rank:
            raise ValueError(f"last_rank={self.last_rank} is before first_rank={self.first_rank}")
        return self

    @abstractmethod
    def draw(self, scores: FloatArray, positive_score: float | None, num: int, rng: np.random.Generator) -> Draws:
        """Return positions in the window, at most ``num``, and their log-probabilities if drawn i.i.d.

        Args:
            scores: float64, shape (num in window,), never empty.
            positive_score: the annotated positive's score or None.
            num: how many are wanted, at least 1.
            rng: the query's own generator.
        """

    def sample(self, candidates: CandidateList, num: int, rng: np.random.Generator) -> Drawn:
        start = self.first_rank - 1
        scores = np.asarray(candidates.scores[start : self.last_rank], dtype=np.float64)
        if num <= 0 or scores.size == 0:
            return Drawn(np.empty(0, dtype=np.int64), num_missing=max(num, 0))
        indices, log_draw_prob = self.draw(scores, candidates.positive_score, num, rng)
        return Drawn(indices + start, num_missing=num - indices.size, log_draw_prob=log_draw_prob)


def require_scores(sampler: str, scores: FloatArray) -> None:
    """Refuse candidates without a score: they would never be drawn, or always.

    Raises:
        DataError: a score is not a number.
    """
    missing = int((~np.isfinite(scores)).sum())
    if missing:
        raise DataError(
            f"sampler {sampler}: {missing} of {scores.size} candidates of a query have no score (those of a source and "
            "planted ones have none); take the sampler top or uniform, or mine with negatives.miner run"
        )


def draw_without_replacement(log_weights: FloatArray, num: int, rng: np.random.Generator) -> IndexArray:
    """Draw at most ``num`` different positions, one after the other, with probability ∝ exp(log_weight).

    Gumbel top-k: the positions of the largest log_weight + Gumbel noise, in draw order. Nothing is exponentiated, so
    that no difference of weights overflows.
    """
    keys = log_weights + rng.gumbel(size=log_weights.size)
    drawn = np.argpartition(-keys, num - 1)[:num] if num < keys.size else np.arange(keys.size)
    return drawn[np.argsort(-keys[drawn])].astype(np.int64)


class Top(RankedSampler):
    """The first ``num`` candidates of the rank window, the same in every epoch.

    Source: greedy top of Zhang and Stratos (NAACL 2021), top-n of Park et al. (HCLT 2023).

    >>> from raydr.negatives.samplers.base import CandidateList
    >>> candidates = CandidateList(np.array([9.0, 8.0, 7.0, 6.0]))
    >>> Top(first_rank=2).sample(candidates, num=2, rng=np.random.default_rng(0)).indices.tolist()
    [1, 2]
    """

    name: Literal["top"] = "top"
    fill: bool = True
    """Fill a list that is too short with random passages. Without it the query has fewer negatives, as the passage
    sieve needs it."""

    def sample(self, candidates: CandidateList, num: int, rng: np.random.Generator) -> Drawn:
        drawn = super().sample(candidates, num, rng)
        return drawn if self.fill else replace(drawn, num_missing=0, num_absent=drawn.num_missing)

    def draw(self, scores: FloatArray, positive_score: float | None, num: int, rng: np.random.Generator) -> Draws:
        return np.arange(min(num, scores.size), dtype=np.int64), None


class Uniform(RankedSampler):
    """Uniform over the rank window, without replacement; scores do not matter.

    Source: the sampling of DPR, ANCE and Tevatron from a mined list.

    >>> from raydr.negatives.samplers.base import CandidateList
    >>> candidates = CandidateList(np.array([9.0, 8.0, 7.0, 6.0]))
    >>> sorted(Uniform(last_rank=3).sample(candidates, num=3, rng=np.random.default_rng(0)).indices.tolist())
    [0, 1, 2]
    """

    name: Literal["uniform"] = "uniform"

    def draw(self, scores: FloatArray, positive_score: float | None, num: int, rng: np.random.Generator) -> Draws:
        return rng.permutation(scores.size)[:num].astype(np.int64), None


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


class SimANS(RankedSampler):
    """Draws without replacement with weight w_i = exp(−a · (s_i − s₊ + b)²).

    The weight peaks at s_i = s₊ − b, with b > 0 *below* the positive. This is the sign of the authors' code; their
    paper prints −b. The sharper the peak, the larger a. Where the positive has no score all draws are equally likely,
    as in their code.

    Source: Zhou et al., SimANS (EMNLP Industry 2022) (a 0.5, b 0; NQ b 1). Their code draws with replacement, takes the
    union and keeps 15 of it at random: by .05 to .08 in total variation another distribution.

    >>> from raydr.negatives.samplers.base import CandidateList
    >>> candidates = CandidateList(np.array([30.0, 19.0, 0.0]), positive_score=20.0)
    >>> SimANS(a=1.0, b=1.0).sample(candidates, num=1, rng=np.random.default_rng(0)).indices.tolist()
    [1]
    """

    name: Literal["simans"] = "simans"
    a: float = Field(default=0.5, ge=0.0)
    """Sharpness of the peak, in units of 1 / score². The published 0.5 is for inner products in the tens; cosines lie
    within 1 of each other, where 0.5 · ``model.scale``² is as sharp."""

    b: float = 0.0
    """How far below the positive's score the peak lies."""

    def draw(self, scores: FloatArray, positive_score: float | None, num: int, rng: np.random.Generator) -> Draws:
        if positive_score is not None or not np.isfinite(scores).any():
            require_scores(self.name, scores)
        if positive_score is not None:
            log_weights = -self.a * (scores - positive_score + self.b) ** 2
            return draw_without_replacement(log_weights, num, rng), None
        return rng.permutation(scores.size)[:num].astype(np.int64), None


class Mixed(Sampler):
    """A share of the negatives uniformly from the whole corpus, the rest from another sampler.

    num_random = ⌊random_share · num⌋; 0 is all hard, 1 all random. The caller draws the random passages.
    Mixed-p of the paper is ``random_share`` 1 − p/100; its good default is p = 50.

    Source: Zhang and Stratos (NAACL 2021).

    >>> drawn = Mixed(random_share=0.5).sample(CandidateList(np.zeros(10)), num=5, rng=np.random.default_rng(0))
    >>> drawn.num_random, drawn.indices.size
    (2, 3)
    """

    name: Literal["mixed"] = "mixed"
    random_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of random passages."""

    hard: Annotated[Sampler, Pluggable()] = Softmax()
    """The sampler of the others."""

    @property
    def tells_draw_probabilities(self) -> bool:
        return self.random_share == 1 or self.hard.tells_draw_probabilities

    def sample(self, candidates: CandidateList, num: int, rng: np.random.Generator) -> Drawn:
        # 1e-9: 0.29 · 100 is 28.999… in floating point, and 29 is meant.
        num_random = math.floor(self.random_share * num + 1e-9)
        drawn = self.hard.sample(candidates, num - num_random, rng)
        return replace(drawn, num_random=drawn.num_random + num_random)
