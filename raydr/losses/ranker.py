"""Losses that learn from a ranker's scores of a query's positive and hard negatives."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from raydr.errors import ConfigError
from raydr.losses.base import (
    RANKER_SCORES,
    Candidates,
    Loss,
    LossOutput,
    gather_positive,
    kl_divergence,
    log_softmax_QC,
)

if TYPE_CHECKING:
    from torch import Tensor


def beside_nce(own_Q: Tensor, name: str, candidates: Candidates, nce_weight: float) -> LossOutput:
    """Add ``nce_weight`` · NCE over all candidates to a loss of each query, which the figures call ``name``."""
    metrics = {name: own_Q.detach().mean()}
    if not nce_weight:
        return LossOutput(own_Q, metrics)
    nce_Q = -gather_positive(log_softmax_QC(candidates.logits_QC()), candidates.positive_Q)
    return LossOutput(own_Q + nce_weight * nce_Q, metrics | {"nce": nce_Q.detach().mean()})


def with_ranker_scores(candidates: Candidates, temperature: float) -> tuple[Candidates, Candidates]:
    """Return the candidates with a ranker's score, all others excluded: by the student's scores, and by the ranker's.

    Args:
        candidates: the step's scores.
        temperature: divisor of the ranker's scores.

    Raises:
        ConfigError: the candidates have no scores of a ranker.
    """
    scores_QC = candidates.signal(RANKER_SCORES)
    if scores_QC is None:
        raise ConfigError("the loss reads a ranker's scores, and the step has none: score the candidates first")
    unknown_QC = scores_QC.isnan()
    student = replace(candidates, excluded_QC=candidates.excluded_QC | unknown_QC)
    return student, replace(student, scores_QC=scores_QC.float().masked_fill(unknown_QC, 0.0) / temperature)


class RankerKL(Loss):
    """KL between the ranker's and the retriever's softmax over the candidates that the ranker has scored.

    ℓ(q) = KL(π(·|q) ‖ p_θ(·|q)) + γ · ℓ_NCE(p⁺, q). π = softmax(t / T) of the ranker's scores t, and p_θ = softmax(s).
    Both are over the positive and the hard negatives with a known score, excluded ones left out. Weights of judges
    apply to both. γ = ``nce_weight``, and ℓ_NCE is over all candidates, in-batch ones included. Random passages that
    fill a short list up have no score: only ℓ_NCE sees them.

    In the gradient the KL is AR2's second term −Σ_j π_j · log p_j.

    Shapes: scores and ranker scores (Q, C), NaN where the ranker has none → loss (Q,).
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
    """γ, weight of NCE beside it; 0 leaves the annotated positive out."""

    def compute(self, candidates: Candidates, epoch: int) -> LossOutput:
        student, ranker = with_ranker_scores(candidates, self.temperature)
        divergence_Q = kl_divergence(log_softmax_QC(ranker.logits_QC()), log_softmax_QC(student.logits_QC()))
        return beside_nce(divergence_Q, "divergence", candidates, self.nce_weight)


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


#: Keeps the logarithm of the ranker's doubt finite, as in the released code.
_EPSILON = 1e-7


class AR2(Loss):
    """The retriever's step of adversarial retriever-ranker training.

    ℓ(q) = λ · a · Σ_j r_j · log p_j − (1 − λ) · Σ_j π_j · log p_j, over the positive and the hard negatives with a
    known ranker's score t, excluded ones left out. p = softmax(s), π = softmax(t / T), and r_j = log(σ(t₊ − t_j) +
    10⁻⁷) ≤ 0, j = ₊ included (r₊ = log ½). The first, adversarial term falls as p_j rises where the ranker is fooled;
    the second is cross-entropy with the ranker's softmax.

    λ = ``adversarial_weight``: 0.5 in the released code, 0 (distillation alone) with SimANS and on MS MARCO. That code
    sums the first term over the queries of a GPU and averages the second. a = ``adversarial_factor`` is that number of
    queries (16 there); 1 averages both. Its KL(π ‖ p) on MS MARCO has the gradient of the second term. The ranker's
    step is ``ranker.loss: nce``.

    Shapes: scores and ranker scores (Q, C), NaN where the ranker has none → loss (Q,).
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
    """λ; the rest is the weight of the distillation."""

    adversarial_factor: float = Field(default=1.0, gt=0.0)
    """a, by which the adversarial term is multiplied besides; the released code's is the number of queries of a GPU."""

    temperature: float = Field(default=1.0, gt=0.0)
    """T, divisor of the ranker's scores in π."""

    def compute(self, candidates: Candidates, epoch: int) -> LossOutput:
        import torch

        student, ranker = with_ranker_scores(candidates, temperature=1.0)
        log_p_QC = log_softmax_QC(student.logits_QC())
        dead_QC = log_p_QC.isneginf()
        # −inf times 0 is NaN in both passes: such cells are cut off before anything is multiplied.
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
