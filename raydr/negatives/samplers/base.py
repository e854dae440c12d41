"""The input and output of a sampler of hard negatives.

A sampler draws from the mined candidates of a query, once per query and epoch. It never repeats candidates to fill
gaps. :class:`Drawn` counts what it could not draw, and what the caller is to draw at random from the corpus.
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
#: Positions in a window, and their log-probabilities if they were drawn i.i.d.
Draws = tuple[IndexArray, FloatArray | None]


@dataclass(frozen=True)
class CandidateList:
    """The mined candidates of one query that no judge dropped, best first.

    Args:
        scores: float, shape (num_candidates,), the miner's scores in rank order.
        positive_score: the annotated positive's score under the same miner, None if it is not known.
    """

    scores: npt.NDArray[np.floating]
    positive_score: float | None = None


@dataclass(frozen=True)
class Drawn:
    """The negatives drawn for a query.

    Args:
        indices: int64, positions in the candidate list, all different unless drawn with replacement.
        num_random: negatives that the caller is to draw uniformly from the corpus.
        num_missing: negatives asked for that neither the list nor ``num_random`` provides: the list is too short.
        log_draw_prob: float64, log q of each index, if drawn i.i.d. from a known q; else None.
        num_absent: negatives asked for that nothing replaces: the query has fewer candidates.
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
        """Whether all draws, those from the corpus included, are i.i.d. from a known distribution."""
        return False

    @abstractmethod
    def sample(self, candidates: CandidateList, num: int, rng: np.random.Generator) -> Drawn:
        """Draw ``num`` negatives for a query.

        Args:
            candidates: the query's candidate list.
            num: how many negatives are wanted.
            rng: the query's own generator, see :func:`raydr.seeding.query_rng`.
        """


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
