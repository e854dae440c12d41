"""Negatives that score about as high as the positive are taken for false ones."""

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
    """How near to a query a candidate may be: up to its positive less a margin.

    Margin 0 leaves out what is nearer than the positive, a negative margin only what is much nearer.
    """

    mode: MarginMode = "absolute"
    """Whether the margin is a similarity, or a share of the annotated passage's."""

    margin: float = 0.0
    """How much below the annotated passage's similarity a candidate is suspicious already."""

    @model_validator(mode="after")
    def _margin_in_range(self) -> MarginLimit:
        if self.mode == "relative" and abs(self.margin) > 1.0:
            raise ValueError(
                f"margin={self.margin} with mode 'relative' is a share of the positive's score; allowed: -1 to 1"
            )
        return self

    def limits(self, positive_scores_Q: Scores) -> Scores:
        """The score above which a candidate is suspicious, for each query.

        absolute: s⁺ − margin;  relative: s⁺ − margin · |s⁺|, that is (1 − margin) · s⁺ for a positive s⁺. The absolute
        value keeps the limit below s⁺ when scores are negative, as dot products may be.

        Args:
            positive_scores_Q: s⁺, NumPy's or PyTorch's.
        """
        return positive_scores_Q - self.margin * (1.0 if self.mode == "absolute" else abs(positive_scores_Q))


class MarginRule(MarginLimit, SuspicionJudge):
    """Base of the judges that drop a negative which scores above its positive less a margin."""

    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        limits_Q = self.limits(candidates.positives(self.name))
        excess_M = candidates.scores_M - limits_Q[candidates.query_M()]
        return self.verdicts(excess_M, excess_M > 0.0)


class Margin(MarginRule):
    """Drops a negative that the retriever scores above the positive's score less a margin.

    Suspicious iff s > s⁺ − margin (absolute) or s > s⁺ − margin·|s⁺| (relative; NV-Retriever's "0.95 of the positive's
    score" is margin 0.05). The verdict's score is by how much.

    Source: NV-Retriever (Moreira et al., 2024); the filters of NVIDIA's NeMo Automodel and Nomic's contrastors.

    >>> judge = Margin(mode="absolute", margin=0.5)
    >>> judge.judge(ScoredCandidates.of_one([4.0, 2.6, 2.4], positive_score=3.0)).action.tolist()
    ['drop', 'drop', 'keep']
    """

    flags: ClassVar[str] = "candidates whose similarity is above the annotated passage's less a margin"
    score_name: ClassVar[str] = "similarity above the limit"

    name: Literal["margin"] = "margin"
    mode: MarginMode = "relative"
    margin: float = 0.05
