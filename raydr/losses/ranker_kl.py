"""Listwise distillation from a ranker: the retriever's distribution over a query's list follows the ranker's."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from raydr.losses.base import (
    Candidates,
    Loss,
    LossOutput,
    beside_nce,
    kl_divergence,
    log_softmax_QC,
    with_ranker_scores,
)


class RankerKL(Loss):
    """KL between the ranker's and the retriever's softmax over the candidates that the ranker has scored.

    ℓ(q) = KL(π(·|q) ‖ p_θ(·|q)) + γ · ℓ_NCE(p⁺, q). π = softmax(t / T) of the ranker's scores t, and p_θ = softmax(s).
    Both are over the positive and the hard negatives that are not excluded and have a score t. Weights of judges apply
    to both. γ = ``nce_weight``, and ℓ_NCE is over all candidates, also in-batch passages. Random passages that fill a
    short list have no score, and are in ℓ_NCE alone.

    The KL has the gradient of AR2's second term −Σ_j π_j · log p_j.

    Shapes: scores and ranker scores (Q, C), NaN without a ranker's score → loss (Q,).
    Source: RocketQAv2 (EMNLP 2021) eq. 5, with the ranker fixed; the second term of AR2 (ICLR 2022).

    >>> import torch
    >>> candidates = Candidates(scores_QC=torch.tensor([[0.0, 0.0, 5.0]]), positive_Q=torch.tensor([0]),
    ...                         excluded_QC=torch.zeros(1, 3, dtype=torch.bool),
    ...                         signals={"ranker_scores_QC": torch.tensor([[2.0, 0.0, float("nan")]])})
    >>> round(RankerKL().compute(candidates, epoch=0).per_query_Q.item(), 4)
    0.3278
    """

    name: Literal["ranker_kl"] = "ranker_kl"
    reads_ranker_scores: ClassVar[bool] = True

    temperature: float = Field(default=1.0, gt=0.0)
    """T, divisor of the ranker's scores."""

    nce_weight: float = Field(default=0.0, ge=0.0)
    """γ, weight of NCE; with 0 the loss does not depend on which candidate is annotated."""

    def compute(self, candidates: Candidates, epoch: int) -> LossOutput:
        student, ranker = with_ranker_scores(candidates, self.temperature)
        divergence_Q = kl_divergence(log_softmax_QC(ranker.logits_QC()), log_softmax_QC(student.logits_QC()))
        return beside_nce(divergence_Q, "divergence", candidates, self.nce_weight)
