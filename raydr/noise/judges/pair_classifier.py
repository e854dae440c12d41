"""A cross-encoder that was trained on the noisy pairs says which of them do not match."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from raydr.noise.judges.base import ScoredCandidates, SecondJudge, Verdicts
from raydr.noise.judges.classifier import require_probabilities


class PairClassifier(SecondJudge):
    """Drops a training pair that a cross-encoder takes for irrelevant.

    To annotated pairs what :class:`~raydr.noise.judges.classifier.Classifier` is to negatives. The cross-encoder is
    trained on the pairs that it judges, mismatched ones included: an epoch or two, so that it learns what matching
    pairs have in common before it knows single pairs by heart. Judges pairs: the only candidate of a query is its
    annotated passage, and the verdict's score is 1 − p.

    As the second step of a cascade (``after``) it reads what an earlier judge is unsure of, and its verdict takes the
    place of that judge's. ``judge.classifier`` then best learns from the pairs that this judge keeps
    (``pairs_kept_by``), by folds (``num_folds``).

    >>> pairs = ScoredCandidates(np.array([0.9, 0.2]), np.array([0, 1, 2]))
    >>> PairClassifier().judge(pairs).action.tolist()
    ['keep', 'drop']
    """

    subject: ClassVar[Literal["pairs"]] = "pairs"
    reads: ClassVar[Literal["cross_encoder"]] = "cross_encoder"

    flags: ClassVar[str] = "pairs that a cross-encoder takes for irrelevant"
    score_name: ClassVar[str] = "1 - probability of relevance"

    name: Literal["pair_classifier"] = "pair_classifier"
    negative_below: float = Field(default=0.5, ge=0.0, le=1.0)
    """Probability of relevance below which a pair is dropped. A cross-encoder that cannot tell gives the share of
    positives among what it was trained on: 1 / (1 + its negatives a query). So 1 − p is a ranking and no probability of
    a mismatch, which depends on how many of the pairs are mismatched."""

    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        require_probabilities(candidates.scores_M, self.name)
        keep_Q = candidates.scores_M >= self.negative_below
        return Verdicts(1.0 - candidates.scores_M, np.where(keep_Q, "keep", "drop"), keep_Q.astype(np.float64))
