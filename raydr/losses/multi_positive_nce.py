"""NCE of queries that several passages answer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from raydr.losses.base import Candidates, Loss, LossOutput, gather_positive


class MultiPositiveNCE(Loss):
    """Contrastive loss over several positives of a query in the same step.

    With P_q the positives of the query in this step, N_q its negatives and n = log Σ_{c ∈ N_q} exp(s_c):

    - ``each``: ℓ(q) = mean over p ∈ P_q of −log( exp(s_p) / (exp(s_p) + exp(n)) ): every positive has to be ahead of
      the negatives, and none competes with another.
    - ``any``: ℓ(q) = −log( Σ_p exp(s_p) / (Σ_p exp(s_p) + exp(n)) ): one of them is enough.

    A query with one positive has the loss of ``nce``, of either kind. Other losses draw one positive an epoch.

    Shapes: scores (Q, C), further positives (Q, C) → loss (Q,).
    Source: ``each``: Khosla et al. (NeurIPS 2020) eq. 2, where the other positives are in the denominator too; ``any``:
    Miech et al. (CVPR 2020) eq. 1.

    >>> import torch
    >>> further_QC = torch.tensor([[False, True, False]])
    >>> candidates = Candidates(scores_QC=torch.tensor([[1.0, 0.0, 0.0]]), positive_Q=torch.tensor([0]),
    ...                         excluded_QC=further_QC, further_QC=further_QC)
    >>> each, any_of_them = MultiPositiveNCE(), MultiPositiveNCE(over="any")
    >>> # half of log(1 + e⁻¹) + log 2, and log(1 + 1 / (e + 1))
    >>> [round(loss.compute(candidates, epoch=0).per_query_Q.item(), 4) for loss in (each, any_of_them)]
    [0.5032, 0.2382]
    """

    name: Literal["multi_positive_nce"] = "multi_positive_nce"

    num_positives: int = Field(default=2, ge=2)
    """Positives of a query in each step, drawn for each epoch; a query that has fewer brings what it has."""

    over: Literal["each", "any"] = "each"
    """Whether the loss asks for every positive, or for any of them."""

    @property
    def num_positives_at_once(self) -> int:
        return self.num_positives

    def compute(self, candidates: Candidates, epoch: int) -> LossOutput:
        import torch

        is_positive_QC = torch.zeros_like(candidates.excluded_QC).scatter(1, candidates.positive_Q.unsqueeze(1), True)
        negative_Q = candidates.logits_QC().masked_fill(is_positive_QC, float("-inf")).logsumexp(dim=1)
        if candidates.further_QC is not None:
            is_positive_QC = is_positive_QC | candidates.further_QC
        scores_QC = candidates.scores_QC.float()
        if self.over == "any":
            together_Q = scores_QC.masked_fill(~is_positive_QC, float("-inf")).logsumexp(dim=1)
            return LossOutput(torch.nn.functional.softplus(negative_Q - together_Q))
        # Cells of no positive are set to its score: what is cut off later must have a finite gradient.
        first_Q1 = gather_positive(scores_QC, candidates.positive_Q).unsqueeze(1)
        of_positives_QC = torch.where(is_positive_QC, scores_QC, first_Q1)
        losses_QC = torch.nn.functional.softplus(negative_Q.unsqueeze(1) - of_positives_QC)
        return LossOutput((losses_QC * is_positive_QC).sum(dim=1) / is_positive_QC.sum(dim=1))
