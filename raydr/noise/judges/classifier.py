"""Judge by a cross-encoder's probability of relevance."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from raydr.errors import DataError
from raydr.noise.judges.base import CascadeJudge, FloatArray, ScoredCandidates, Verdicts


def require_probabilities(scores_M: FloatArray, judge: str) -> None:
    """Refuse scores that are no probabilities.

    Raises:
        DataError: a score is not in [0, 1].
    """
    outside_M = (scores_M < 0.0) | (scores_M > 1.0)
    if outside_M.any():
        raise DataError(
            f"judge {judge} reads probabilities; score {int(outside_M.argmax())} is "
            f"{scores_M[outside_M.argmax()]}: apply the cross-encoder's sigmoid or softmax first"
        )


class Classifier(CascadeJudge):
    """Drops or relabels candidates that a cross-encoder finds relevant; optionally keeps only sure negatives.

    A candidate with p > ``positive_above`` is a false negative, and is dropped (Park et al.) or relabelled (RocketQA).
    With p < ``negative_below`` it is kept; between the two it is dropped. Without ``negative_below`` all others are
    kept. RocketQA is ``negative_below`` 0.1, ``positive_above`` 0.9, ``positives`` relabel.

    Source: Park et al. (HCLT 2023) and RocketQA.

    >>> rocketqa = Classifier(negative_below=0.1, positives="relabel")
    >>> rocketqa.judge(ScoredCandidates.of_query([0.05, 0.5, 0.95])).action.tolist()
    ['keep', 'drop', 'relabel']
    """

    reads: ClassVar[Literal["cross_encoder"]] = "cross_encoder"

    flags: ClassVar[str] = "candidates that a cross-encoder takes for relevant"
    score_name: ClassVar[str] = "probability of relevance"
    score_is_probability: ClassVar[bool] = True

    name: Literal["classifier"] = "classifier"
    positive_above: float = Field(default=0.9, ge=0.0, le=1.0)
    """Probability above which a candidate counts as relevant."""

    negative_below: float | None = Field(default=None, ge=0.0, le=1.0)
    """Probability below which a candidate is a sure negative; if null, all other candidates are kept."""

    positives: Literal["drop", "relabel"] = "drop"
    """Action on relevant candidates."""

    @model_validator(mode="after")
    def _thresholds_in_order(self) -> Classifier:
        if self.negative_below is not None and self.negative_below > self.positive_above:
            raise ValueError(f"negative_below={self.negative_below} is above positive_above={self.positive_above}")
        return self

    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        probability_M = candidates.scores_M
        require_probabilities(probability_M, self.name)
        keep_M = probability_M <= self.positive_above
        if self.negative_below is not None:
            keep_M &= probability_M < self.negative_below
        action_M = np.where(keep_M, "keep", np.where(probability_M > self.positive_above, self.positives, "drop"))
        return Verdicts(probability_M, action_M, keep_M.astype(np.float64))
