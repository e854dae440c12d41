"""The input and output of a sampler of hard negatives.

A sampler draws from the mined candidates of a query, once per query and epoch. It never repeats candidates to fill a
short list. :class:`Drawn` counts missing negatives, and those that the caller draws at random from the corpus.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from raydr.component import Component
from raydr.errors import DataError

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.int64]
#: Positions in a range of ranks, and their log-probabilities if they were drawn i.i.d.
Draws = tuple[IndexArray, FloatArray | None]


@dataclass(frozen=True)
class CandidateList:
    """The mined candidates of a query that no judge dropped, best first.

    Args:
        scores: float, shape (num_candidates,), scores by the miner, in rank order.
        positive_score: score of the annotated positive by the same miner; None if unknown.
    """

    scores: npt.NDArray[np.floating]
    positive_score: float | None = None


@dataclass(frozen=True)
class Drawn:
    """The negatives drawn for a query.

    Args:
        indices: int64, positions in the candidate list, distinct unless drawn with replacement.
        num_random: number of negatives that the caller draws uniformly from the corpus.
        num_missing: number of negatives that a short list lacks, and that the caller draws from the corpus as well.
        log_draw_prob: float64, log q of each index, if drawn i.i.d. from a known q; else None.
        num_absent: number of negatives that a short list lacks, and that nothing replaces.
    """

    indices: IndexArray
    num_random: int = 0
    num_missing: int = 0
    log_draw_prob: FloatArray | None = None
    num_absent: int = 0


class Sampler(Component):
    """Base of the samplers; subclasses implement :meth:`sample`."""

    package: ClassVar[str] = "raydr.negatives.samplers"
    kind: ClassVar[str] = "sampler"

    @property
    def tells_draw_probabilities(self) -> bool:
        """Whether all draws, also those from the corpus, are i.i.d. from a known distribution."""
        return False

    @abstractmethod
    def sample(self, candidates: CandidateList, num: int, rng: np.random.Generator) -> Drawn:
        """Draw ``num`` negatives for a query.

        Args:
            candidates: candidates of the query.
            num: number of negatives.
            rng: random generator of the query, see :func:`raydr.seeding.query_rng`.
        """


class RankedSampler(Sampler):
    """Base of the samplers that draw from a range of ranks; subclasses implement :meth:`draw`."""

    first_rank: int = Field(default=1, ge=1)
    """First rank of the range, from 1; a higher rank skips the likeliest false negatives."""

    last_rank: int | None = Field(default=None, ge=1)
    """Last rank of the range; the end of the list if null."""

    @model_validator(mode="after")
    def _window_is_not_empty(self) -> RankedSampler:
        if self.last_rank is not None and self.last_rank < self.first_rank:
            raise ValueError(f"last_rank={self.last_rank} is before first_rank={self.first_rank}")
        return self

    @abstractmethod
    def draw(self, scores: FloatArray, positive_score: float | None, num: int, rng: np.random.Generator) -> Draws:
        """Draw at most ``num`` positions in the range; return them, and their log-probabilities if drawn i.i.d.

        Args:
            scores: float64, shape (candidates in the range,), never empty.
            positive_score: score of the annotated positive, or None.
            num: number of negatives, at least 1.
            rng: random generator of the query.
        """

    def sample(self, candidates: CandidateList, num: int, rng: np.random.Generator) -> Drawn:
        start = self.first_rank - 1
        scores = np.asarray(candidates.scores[start : self.last_rank], dtype=np.float64)
        if num <= 0 or scores.size == 0:
            return Drawn(np.empty(0, dtype=np.int64), num_missing=max(num, 0))
        indices, log_draw_prob = self.draw(scores, candidates.positive_score, num, rng)
        return Drawn(indices + start, num_missing=num - indices.size, log_draw_prob=log_draw_prob)


def require_scores(sampler: str, scores: FloatArray) -> None:
    """Refuse candidates without a score, which would never be drawn, or always.

    Raises:
        DataError: a score is not finite.
    """
    missing = int((~np.isfinite(scores)).sum())
    if missing:
        raise DataError(
            f"sampler {sampler}: {missing} of {scores.size} candidates of a query have no score (candidates of a "
            "source and planted candidates have none); take the sampler top or uniform, or set negatives.miner to bm25"
        )


def draw_without_replacement(log_weights: FloatArray, num: int, rng: np.random.Generator) -> IndexArray:
    """Draw at most ``num`` distinct positions, one after another, with probability ∝ exp(log_weight).

    Gumbel top-k: the positions of the largest log_weight + Gumbel noise, in draw order. Without exponentials, no weight
    overflows.
    """
    keys = log_weights + rng.gumbel(size=log_weights.size)
    drawn = np.argpartition(-keys, num - 1)[:num] if num < keys.size else np.arange(keys.size)
    return drawn[np.argsort(-keys[drawn])].astype(np.int64)
