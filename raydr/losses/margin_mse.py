"""Distillation of margins: differences of the retriever's scores follow those of the ranker's scores."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from raydr.losses.base import Candidates, Loss, LossOutput, beside_nce, gather_positive, with_ranker_scores


class MarginMSE(Loss):
    """Squared difference of the retriever's and the ranker's margins between the positive and each hard negative.

    ℓ(q) = Σ_j w_j · ((s⁺ − s_j) − (t⁺ − t_j) / T)² / Σ_j w_j + γ · ℓ_NCE(p⁺, q). t are the ranker's scores, and j the
    query's hard negatives that are not excluded and have a score t_j. w_j is the judges' weight, 1 by default. γ =
    ``nce_weight``, and ℓ_NCE is over all candidates. The first term of a query without such negatives is 0.

    Scores are scale · sim: with cosine a margin is at most twice the scale. T should scale the ranker's margins to that
    range.

    Shapes: scores and ranker scores (Q, C), NaN without a ranker's score → loss (Q,).
    Source: Hofstätter et al. (2020), there with a single negative per query, dot products and T = 1.

    >>> import torch
    >>> candidates = Candidates(scores_QC=torch.tensor([[3.0, 1.0, 5.0]]), positive_Q=torch.tensor([0]),
    ...                         excluded_QC=torch.zeros(1, 3, dtype=torch.bool),
    ...                         signals={"ranker_scores_QC": torch.tensor([[6.0, 1.0, float("nan")]])})
    >>> MarginMSE().compute(candidates, epoch=0).per_query_Q.item()  # (2 - 5)²
    9.0
    """

    name: Literal["margin_mse"] = "margin_mse"
    reads_ranker_scores: ClassVar[bool] = True

    temperature: float = Field(default=1.0, gt=0.0)
    """T, divisor of the ranker's margins."""

    nce_weight: float = Field(default=0.0, ge=0.0)
    """γ, weight of NCE."""

    def compute(self, candidates: Candidates, epoch: int) -> LossOutput:
        student, ranker = with_ranker_scores(candidates, self.temperature)
        counts_QC = (~student.excluded_QC).float()
        if candidates.log_weight_QC is not None:
            counts_QC = counts_QC * candidates.log_weight_QC.exp()
        counts_QC = counts_QC.scatter(1, candidates.positive_Q.unsqueeze(1), 0.0)
        # NaN times 0 is NaN in both passes, so that cells without a score are masked before the products.
        difference_QC = (student.scores_QC.float() - ranker.scores_QC).masked_fill(student.excluded_QC, 0.0)
        margin_QC = gather_positive(difference_QC, candidates.positive_Q).unsqueeze(1) - difference_QC
        squares_Q = (counts_QC * margin_QC**2).sum(dim=1) / counts_QC.sum(dim=1).clamp(min=1e-9)
        return beside_nce(squares_Q, "margin_mse", candidates, self.nce_weight)
