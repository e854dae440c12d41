"""Binary cross-entropy of each candidate by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from raydr.losses.base import Candidates, Loss, LossOutput

if TYPE_CHECKING:
    from torch import Tensor


class BinaryCrossEntropy(Loss):
    """Binary cross-entropy of relevance, of each candidate by itself.

    ℓ(q) = −( log σ(s⁺) + Σ_{c ≠ p⁺} w_c · log(1 − σ(s_c)) ) / Σ_c w_c over the candidates that are not excluded. w_c is
    the judges' weight of a candidate, 1 by default and for the positive.

    The scores become log-odds of relevance, so that σ(s) is a probability. With ``nce`` only differences within a
    query's list have a meaning.

    Shapes: scores (Q, C) → loss (Q,).
    Source: cross-encoders of Nogueira and Cho (2019) and RocketQA (NAACL 2021).

    >>> import torch
    >>> candidates = Candidates(scores_QC=torch.tensor([[0.0, 0.0, 5.0]]), positive_Q=torch.tensor([0]),
    ...                         excluded_QC=torch.tensor([[False, False, True]]))
    >>> round(BinaryCrossEntropy().compute(candidates, epoch=0).per_query_Q.item(), 4)  # log 2; the 5.0 is excluded
    0.6931
    """

    name: Literal["bce"] = "bce"

    def compute(self, candidates: Candidates, epoch: int) -> LossOutput:
        import torch

        scores_QC = candidates.scores_QC.float().masked_fill(candidates.excluded_QC, 0.0)
        is_positive_QC = torch.zeros_like(scores_QC).scatter(1, candidates.positive_Q.unsqueeze(1), 1.0)
        losses_QC = torch.nn.functional.binary_cross_entropy_with_logits(scores_QC, is_positive_QC, reduction="none")
        weight_QC = _weight_QC(candidates)
        return LossOutput((weight_QC * losses_QC).sum(dim=1) / weight_QC.sum(dim=1))


def _weight_QC(candidates: Candidates) -> Tensor:
    """Return w_c, 0 for excluded candidates."""
    if candidates.log_weight_QC is None:
        return (~candidates.excluded_QC).float()
    return candidates.log_weight_QC.exp().masked_fill(candidates.excluded_QC, 0.0)
