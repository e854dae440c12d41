"""Robust contrastive loss: NCE with contrastive confidence regularisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from raydr.component import Config
from raydr.losses.base import Candidates, Loss, LossOutput, gather_positive, log_softmax_QC

if TYPE_CHECKING:
    from torch import Tensor

#: β with dot products above which a warning is shown: ten times the maximum of the paper, which has 1e-4 to 1e-3.
LARGE_BETA_FOR_DOT = 1e-2


class BetaSchedule(Config):
    """β of the robust contrastive loss by epoch: 0, then a constant or a linear ramp to a constant.

    β(e) = 0                                                            for e < start_epoch
    β(e) = final · min((e − start_epoch + 1) / ramp_epochs, 1)          for e ≥ start_epoch;
    with ``ramp_epochs`` 0 it is ``final`` at once. In a config a number stands for ``{final: number}``.

    Source: Wang et al. (AAAI 2024), who use β only after some normal training; hence ``start_epoch`` 1 by default. Set
        it to 0 only for training from a trained retriever, as the passage sieve does.

    >>> [BetaSchedule(final=0.4, start_epoch=1, ramp_epochs=2).value(epoch) for epoch in range(4)]
    [0.0, 0.2, 0.4, 0.4]
    """

    final: float = Field(ge=0.0, le=1.0)
    """β at the end, 0 (plain NCE) to 1."""

    start_epoch: int = Field(default=1, ge=0)
    """Number of epochs with β = 0."""

    ramp_epochs: int = Field(default=0, ge=0)
    """Number of epochs in which β rises to ``final``, in equal steps."""

    @model_validator(mode="before")
    @classmethod
    def _accept_number(cls, value: Any) -> Any:
        return {"final": value} if isinstance(value, int | float) and not isinstance(value, bool) else value

    def value(self, epoch: int) -> float:
        """Return β after ``epoch`` finished epochs."""
        if epoch < self.start_epoch:
            return 0.0
        if self.ramp_epochs == 0:
            return self.final
        return self.final * min((epoch - self.start_epoch + 1) / self.ramp_epochs, 1.0)


def mean_candidate_loss(log_probs_QC: Tensor, candidates: Candidates) -> tuple[Tensor, Tensor]:
    """Compute ℓ_CCR of each query, and the sum of weights of its candidates, without weights their number.

    ℓ_CCR(q) = Σ_c w_c · ℓ_NCE(c, q) / Σ_c w_c over the candidates that are not excluded. ℓ_NCE(c, q) = log Σ_k
    w_k·exp(s_k) − s_c. Without weights it is the plain mean. In the limit of weight 0 a candidate counts as excluded.

    Shapes: log-probabilities (Q, C), excluded cells −inf → (Q,), (Q,).
    """
    dead_QC = log_probs_QC.isneginf()
    # −inf times 0 is NaN in both passes, so that such cells are masked before the products.
    losses_QC = -log_probs_QC.masked_fill(dead_QC, 0.0)
    if candidates.log_weight_QC is None:
        num_candidates_Q = (~dead_QC).sum(dim=1).to(losses_QC.dtype)
        return losses_QC.sum(dim=1) / num_candidates_Q, num_candidates_Q
    log_weight_QC = candidates.log_weight_QC.masked_fill(dead_QC, 0.0)
    weight_QC = log_weight_QC.exp().masked_fill(dead_QC, 0.0)
    num_candidates_Q = weight_QC.sum(dim=1)
    return (weight_QC * (losses_QC + log_weight_QC)).sum(dim=1) / num_candidates_Q, num_candidates_Q


class RCL(Loss):
    """Robust contrastive loss, RCL = NCE − β·CCR.

    ℓ_RCL(q) = ℓ_NCE(p⁺, q) − β · mean_{c ∈ C_q} ℓ_NCE(c, q), with ℓ_NCE(c, q) = −log softmax(scores)_c and C_q all
    candidates that are not excluded: in-batch, from other workers and hard. Both terms come from the same log-softmax.
    The loss makes confident predictions more confident, so that a false negative with a high score is pushed away less.

    ``reduction="reference"`` is the loss of the authors' code: ℓ_NCE(p⁺, q) / |C_q| − β·CCR. This is an effective β of
    β·|C_q| in a loss divided by |C_q|. Before ``start_epoch`` both are plain NCE.

    Shapes: scores (Q, C) → loss (Q,).
    Source: Wang et al. (AAAI 2024) eq. 8 and listing in appendix A.3.

    >>> import torch
    >>> candidates = Candidates(scores_QC=torch.tensor([[1.0, 0.0]]), positive_Q=torch.tensor([0]),
    ...                         excluded_QC=torch.tensor([[False, False]]))
    >>> loss = RCL(beta=BetaSchedule(final=0.5, start_epoch=1))
    >>> [round(loss.compute(candidates, epoch).per_query_Q.item(), 4) for epoch in (0, 1)]
    [0.3133, -0.0934]
    """

    name: Literal["rcl"] = "rcl"
    beta: BetaSchedule = BetaSchedule(final=0.5)
    """Schedule of β, or a constant."""

    reduction: Literal["paper", "reference"] = "paper"
    """Form of the loss: that of the paper, or of the authors' code (``reference``)."""

    @property
    def num_warmup_epochs(self) -> int:
        return self.beta.start_epoch

    def compute(self, candidates: Candidates, epoch: int) -> LossOutput:
        beta = self.beta.value(epoch)
        log_probs_QC = log_softmax_QC(candidates.logits_QC())
        nce_Q = -gather_positive(log_probs_QC, candidates.positive_Q)
        ccr_Q, num_candidates_Q = mean_candidate_loss(log_probs_QC, candidates)
        # Epochs before start_epoch are plain NCE, since trainings with other losses share them.
        scaled = self.reduction == "reference" and epoch >= self.beta.start_epoch
        contrast_Q = nce_Q / num_candidates_Q if scaled else nce_Q
        metrics = {
            "nce": nce_Q.detach().mean(),
            "ccr": ccr_Q.detach().mean(),
            "beta": nce_Q.new_tensor(beta),
        }
        return LossOutput(contrast_Q - beta * ccr_Q, metrics)

    def check(self, similarity: Literal["cosine", "dot"]) -> list[str]:
        advice = []
        if similarity == "dot" and self.beta.final > LARGE_BETA_FOR_DOT:
            advice.append(
                f"beta {self.beta.final} with an unbounded similarity (dot): the loss has no lower bound and may "
                "diverge; use cosine, or beta 1e-4 to 1e-3 in the last epochs"
            )
        if self.reduction == "reference" and self.beta.final > 0:
            advice.append(
                f"reduction 'reference' multiplies beta {self.beta.final} by the number of candidates of a query; "
                "published values of beta are for 'paper' unless they come from the authors' code"
            )
        if self.beta.start_epoch == 0 and self.beta.final > 0:
            advice.append(
                "beta is on from the first epoch: this is right only if training starts from a trained retriever; "
                "otherwise set beta.start_epoch >= 1"
            )
        return advice
