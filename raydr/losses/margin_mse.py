"""Distillation of margins: the retriever is as much surer of the positive than of a negative as the ranker is."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from raydr.losses.base import Candidates, Loss, LossOutput, beside_nce, gather_positive, with_ranker_scores


class MarginMSE(Loss):
    """Squared difference of the retriever's and the ranker's margins between the positive and each hard negative.

    ℓ(q) = Σ_j w_j · ((s⁺ − s_j) − (t⁺ − t_j) / T)² / Σ_j w_j + γ · ℓ_NCE(p⁺, q). t are the ranker's scores, and j the
    hard negatives of the query with a known score, excluded ones left out. w_j is the weight that judges gave, 1 by
    default. γ = ``nce_weight``, and ℓ_NCE is over all candidates. A query without such a negative has the first term 0.

    Scores are scale · sim: with cosine a margin is at most twice the scale, so let T bring the ranker's margins there.

    Shapes: scores and ranker scores (Q, C), NaN where the ranker has none → loss (Q,).
    Source: Hofstätter et al. (2020), there with one negative a query, dot products and T = 1.

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
    """γ, weight of NCE beside it."""

    def compute(self, candidates: Candidates, epoch: int) -> LossOutput:
        student, ranker = with_ranker_scores(candidates, self.temperature)
        counts_QC = (~student.excluded_QC).float()
        if candidates.log_weight_QC is not None:
            counts_QC = counts_QC * candidates.log_weight_QC.exp()
        counts_QC = counts_QC.scatter(1, candidates.positive_Q.unsqueeze(1), 0.0)
        # What has no score is cut off before anything is multiplied: NaN times 0 is NaN, in the gradient too.
        difference_QC = (student.scores_QC.float() - ranker.scores_QC).masked_fill(student.excluded_QC, 0.0)
        margin_QC = gather_positive(difference_QC, candidates.positive_Q).unsqueeze(1) - difference_QC
        squares_Q = (counts_QC * margin_QC**2).sum(dim=1) / counts_QC.sum(dim=1).clamp(min=1e-9)
        return beside_nce(squares_Q, "margin_mse", candidates, self.nce_weight)
