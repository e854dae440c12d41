"""Judge of pairs by a cross-encoder that was trained on the noisy pairs."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from raydr.noise.judges.base import CascadeJudge, ScoredCandidates, Verdicts
from raydr.noise.judges.classifier import require_probabilities


class PairClassifier(CascadeJudge):
    """Drops a training pair that a cross-encoder finds irrelevant.

    It is the counterpart of :class:`~raydr.noise.judges.classifier.Classifier` for annotated pairs. The cross-encoder
    is trained on the pairs that it judges, for an epoch or two: it learns common features of matching pairs before it
    memorises pairs. The only candidate of a query is its annotated passage; the score of a verdict is 1 − p.

    As the second judge of a cascade (``after``) it reads the doubtful pairs of an earlier judge and overrides its
    verdicts. ``judge.classifier`` should then be trained on the pairs that this judge keeps (``pairs_kept_by``), by
    folds (``num_folds``).

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
    """Probability of relevance below which a pair is dropped. The probability of an undecided cross-encoder is the
    share of positives in its training data: 1 / (1 + negatives per query). So 1 − p ranks pairs, but is no
    P(mismatched), which depends on the share of mismatched pairs."""

    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        require_probabilities(candidates.scores_M, self.name)
        keep_Q = candidates.scores_M >= self.negative_below
        return Verdicts(1.0 - candidates.scores_M, np.where(keep_Q, "keep", "drop"), keep_Q.astype(np.float64))
