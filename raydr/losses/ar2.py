"""AR2: the retriever prefers passages that fool the ranker, and its distribution stays near the ranker's."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from raydr.losses.base import Candidates, Loss, LossOutput, gather_positive, log_softmax_QC, with_ranker_scores

#: Term that keeps the logarithm finite, as in the released code.
_EPSILON = 1e-7


class AR2(Loss):
    """The retriever's step of adversarial retriever-ranker training.

    ℓ(q) = λ · a · Σ_j r_j · log p_j − (1 − λ) · Σ_j π_j · log p_j, over the positive and the hard negatives that are
    not excluded and have a ranker's score t. p = softmax(s), π = softmax(t / T), and r_j = log(σ(t₊ − t_j) + 10⁻⁷) ≤ 0,
    also for the positive (r₊ = log ½). The first, adversarial term falls as p_j rises where t_j is high. The second
    term is the cross-entropy with the ranker's softmax.

    λ = ``adversarial_weight``: 0.5 in the released code, 0 (distillation alone) with SimANS and on MS MARCO. That code
    sums the first term over the queries of a GPU and averages the second. a = ``adversarial_factor`` is that number of
    queries (16 there); 1 averages both. Its KL(π ‖ p) on MS MARCO has the gradient of the second term. The ranker's
    step is ``ranker.loss: nce``.

    Shapes: scores and ranker scores (Q, C), NaN without a ranker's score → loss (Q,).
    Source: Zhang et al. (ICLR 2022) and its released code.

    >>> import torch
    >>> candidates = Candidates(scores_QC=torch.tensor([[0.0, 0.0, 5.0]]), positive_Q=torch.tensor([0]),
    ...                         excluded_QC=torch.zeros(1, 3, dtype=torch.bool),
    ...                         signals={"ranker_scores_QC": torch.tensor([[0.0, 0.0, float("nan")]])})
    >>> # log ½ · log ½ twice, and −log ½
    >>> [round(AR2(adversarial_weight=w).compute(candidates, 0).per_query_Q.item(), 4) for w in (1.0, 0.0)]
    [0.9609, 0.6931]
    """

    name: Literal["ar2"] = "ar2"
    reads_ranker_scores: ClassVar[bool] = True

    adversarial_weight: float = Field(default=0.5, ge=0.0, le=1.0)
    """λ, weight of the adversarial term; 1 − λ is the weight of the distillation."""

    adversarial_factor: float = Field(default=1.0, gt=0.0)
    """a, further factor of the adversarial term; in the released code it is the number of queries of a GPU."""

    temperature: float = Field(default=1.0, gt=0.0)
    """T, divisor of the ranker's scores in π."""

    def compute(self, candidates: Candidates, epoch: int) -> LossOutput:
        import torch

        student, ranker = with_ranker_scores(candidates, temperature=1.0)
        log_p_QC = log_softmax_QC(student.logits_QC())
        dead_QC = log_p_QC.isneginf()
        # −inf times 0 is NaN in both passes, so that such cells are masked before the products.
        log_p_QC = log_p_QC.masked_fill(dead_QC, 0.0)
        scores_QC = ranker.scores_QC
        margin_QC = gather_positive(scores_QC, candidates.positive_Q).unsqueeze(1) - scores_QC
        reward_QC = (torch.sigmoid(margin_QC) + _EPSILON).log()
        adversarial_Q = (reward_QC * log_p_QC).sum(dim=1)
        _, cooled = with_ranker_scores(candidates, self.temperature)
        distillation_Q = -(log_softmax_QC(cooled.logits_QC()).exp() * log_p_QC).sum(dim=1)
        weight = self.adversarial_weight
        loss_Q = weight * self.adversarial_factor * adversarial_Q + (1.0 - weight) * distillation_Q
        metrics = {"adversarial": adversarial_Q.detach().mean(), "distillation": distillation_Q.detach().mean()}
        return LossOutput(loss_Q, metrics)
