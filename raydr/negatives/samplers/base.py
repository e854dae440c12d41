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

from raydr.component import Component

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
