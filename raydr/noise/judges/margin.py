"""Judges that flag negatives with a score near or above the positive's."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

from pydantic import model_validator

from raydr.component import Config
from raydr.noise.judges.base import FloatArray, ScoredCandidates, SuspicionJudge, Verdicts

if TYPE_CHECKING:
    import torch

MarginMode = Literal["absolute", "relative"]
Scores = TypeVar("Scores", FloatArray, "torch.Tensor")


class MarginLimit(Config):
    """Upper limit of a candidate's similarity: the positive's less a margin.

    Margin 0 excludes candidates nearer than the positive, a negative margin only those that are much nearer.
    """

    mode: MarginMode = "absolute"
    """Unit of the margin: a similarity (``absolute``), or a share of the annotated passage's (``relative``)."""

    margin: float = 0.0
    """Distance of the limit below the annotated passage's similarity."""

    @model_validator(mode="after")
    def _margin_in_range(self) -> MarginLimit:
        if self.mode == "relative" and abs(self.margin) > 1.0:
            raise ValueError(
                f"margin={self.margin} with mode 'relative' is a share of the positive's score; allowed: -1 to 1"
            )
        return self

    def limits(self, positive_scores_Q: Scores) -> Scores:
        """Return the score above which a candidate of each query is suspicious.

        absolute: s⁺ − margin;  relative: s⁺ − margin · |s⁺|, which is (1 − margin) · s⁺ for s⁺ > 0. The absolute value
        keeps the limit below s⁺ for negative scores, such as dot products.

        Args:
            positive_scores_Q: s⁺, NumPy array or PyTorch tensor.
        """
        return positive_scores_Q - self.margin * (1.0 if self.mode == "absolute" else abs(positive_scores_Q))


class MarginRule(MarginLimit, SuspicionJudge):
    """Base of the judges that flag negatives above their positive's score less a margin."""

    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        limits_Q = self.limits(candidates.positives(self.name))
        excess_M = candidates.scores_M - limits_Q[candidates.query_M()]
        return self.verdicts(excess_M, excess_M > 0.0)


class Margin(MarginRule):
    """Drops a negative whose retriever score exceeds the positive's less a margin.

    A negative is suspicious iff s > s⁺ − margin (absolute) or s > s⁺ − margin·|s⁺| (relative; NV-Retriever's "0.95 of
    the positive's score" is margin 0.05). The score of a verdict is the excess.

    Source: NV-Retriever (Moreira et al., 2024); the filters of NVIDIA's NeMo Automodel and Nomic's contrastors.

    >>> judge = Margin(mode="absolute", margin=0.5)
    >>> judge.judge(ScoredCandidates.of_query([4.0, 2.6, 2.4], positive_score=3.0)).action.tolist()
    ['drop', 'drop', 'keep']
    """

    flags: ClassVar[str] = "candidates whose similarity is above the annotated passage's less a margin"
    score_name: ClassVar[str] = "similarity above the limit"

    name: Literal["margin"] = "margin"
    mode: MarginMode = "relative"
    margin: float = 0.05
