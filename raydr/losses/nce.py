"""Noise contrastive estimation: softmax cross-entropy of the positive against all candidates."""

from __future__ import annotations

from typing import Literal

from raydr.losses.base import Candidates, Loss, LossOutput, gather_positive, log_softmax_QC


class NCE(Loss):
    """Plain contrastive loss of dense retrieval.

    ℓ(q) = −log( exp(s⁺) / Σ_{c ∈ C_q} exp(s_c) ). s = scale · sim, and C_q are the candidates that are not excluded for
    q, including the positive.

    Shapes: scores (Q, C) → loss (Q,).
    Source: Wang et al. (AAAI 2024) eq. 2; Zhang et al. (EMNLP Findings 2023) eq. 2.

    >>> import torch
    >>> candidates = Candidates(scores_QC=torch.tensor([[1.0, 0.0, 5.0]]), positive_Q=torch.tensor([0]),
    ...                         excluded_QC=torch.tensor([[False, False, True]]))
    >>> round(NCE().compute(candidates, epoch=0).per_query_Q.item(), 4)  # log(1 + e^-1); the 5.0 is excluded
    0.3133
    """

    name: Literal["nce"] = "nce"

    def compute(self, candidates: Candidates, epoch: int) -> LossOutput:
        log_probs_QC = log_softmax_QC(candidates.logits_QC())
        return LossOutput(-gather_positive(log_probs_QC, candidates.positive_Q))
