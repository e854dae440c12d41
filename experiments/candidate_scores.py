"""Scores of all candidate negatives of a split, and which of them are known to be false."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.arm_training import ArmData
from raydr.data.annotations import known_false_negatives, positives_of
from raydr.data.dataset import read_split
from raydr.data.tables import pairs_of
from raydr.errors import ConfigError
from raydr.models.pair_scoring import FloatArray, PairScorer
from raydr.noise.candidates import candidates_of
from raydr.noise.judges.base import ScoredCandidates
from raydr.stages.pair_reader import PairReader
from raydr.stages.scoring import Scoring


@dataclass(frozen=True)
class ScoredSplit:
    """Candidates with scores and truth.

    Args:
        candidates: of all queries, with the score of each query's best scored positive.
        false_M: whether a candidate is a known false negative.
        query_ids: the queries, in the order of the candidates.
    """

    candidates: ScoredCandidates
    false_M: NDArray[np.bool_]
    query_ids: list[str]

    @property
    def query_M(self) -> NDArray[np.int64]:
        """The number of the query that each candidate belongs to."""
        return self.candidates.query_M()


def score_split(data: ArmData, split: str, scorer: PairScorer, likeness: bool = False) -> ScoredSplit:
    """Score the candidates of a split and the positives of their queries.

    Args:
        data: with candidates.
        split: the split.
        scorer: a saved model, or one in training.
        likeness: whether candidates are compared with their queries' positives too.

    Raises:
        ConfigError: the data have no candidates.
    """
    if data.negatives is None:
        raise ConfigError("there are no candidates to score: set the sections negatives and train.num_hard_negatives")
    table = read_split(data.negatives, "negatives", split)
    found = candidates_of(table, 0, len(table))
    reader = PairReader(data.dataset, data.corpus, split, scorer)
    scored = reader.candidates(found, positives_of(data.dataset, split, found.query_ids), likeness)
    candidates = ScoredCandidates(scored.scores_M, found.offsets, scored.best_Q, scored.likeness_M)
    false = known_false_negatives(data.dataset, split)
    false_M = np.fromiter((pair in false for pair in pairs_of(found.table)), dtype=np.bool_, count=len(table))
    return ScoredSplit(candidates, false_M, found.query_ids)


def score_by_model(
    at: int, data: ArmData, split: str, scoring: Scoring, likeness: bool = False
) -> tuple[int, ScoredSplit]:
    """:func:`score_split` by a saved model, beside its number; to be run as a Ray task."""
    return at, score_split(data, split, scoring.open(), likeness)


def relative_to_positive(scored: ScoredSplit) -> FloatArray:
    """(s − s⁺) / |s⁺| of each candidate: what the relative margin compares with a threshold."""
    positive_M = _positive_M(scored)
    return np.asarray((scored.candidates.scores_M - positive_M) / np.abs(positive_M))


def above_positive(scored: ScoredSplit) -> FloatArray:
    """s − s⁺ of each candidate: what the absolute margin compares with a threshold."""
    return np.asarray(scored.candidates.scores_M - _positive_M(scored))


def _positive_M(scored: ScoredSplit) -> FloatArray:
    return scored.candidates.positives("margin")[scored.query_M]
