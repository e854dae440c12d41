"""Noisy Pair Corrector: for flagged pairs, the teacher's distribution replaces the label."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from raydr.errors import ConfigError
from raydr.losses.base import (
    CLEAN,
    TEACHER_SCORES,
    Candidates,
    Loss,
    LossOutput,
    gather_positive,
    kl_divergence,
    log_softmax_QC,
)

if TYPE_CHECKING:
    from torch import Tensor

#: ``student_teacher`` is KL(student ‖ teacher), ``teacher_student`` is KL(teacher ‖ student).
Direction = Literal["student_teacher", "teacher_student"]


def student_teacher_divergence(log_student_QC: Tensor, candidates: Candidates, direction: Direction) -> Tensor:
    """Compute KL between the student's and the teacher's softmax over each query's candidates, shape (Q,).

    Masks and weights apply to both; the teacher receives no gradient.

    Args:
        log_student_QC: log-softmax of the student.
        candidates: candidates with the teacher's scores.
        direction: order of the two distributions.
    """
    teacher_scores_QC = candidates.signal(TEACHER_SCORES)
    if teacher_scores_QC is None:
        raise ConfigError("the loss reads a teacher, and the step has no teacher scores: keep a teacher, or use nce")
    teacher = replace(candidates, scores_QC=teacher_scores_QC.detach())
    log_teacher_QC = log_softmax_QC(teacher.logits_QC())
    if direction == "student_teacher":
        return kl_divergence(log_student_QC, log_teacher_QC)
    return kl_divergence(log_teacher_QC, log_student_QC)


class NPC(Loss):
    """Contrastive loss of the pairs that are not flagged, and consistency with an EMA teacher for all pairs.

    ℓ(q) = ŷ_q · ℓ_NCE(p⁺, q) + λ_cons · KL(p_θ(·|q) ‖ p_θ*(·|q)). ŷ_q is 0 for a pair that the detector flags and 1 for
    others, or p(clean), which is not in the paper. The warm-up epochs are plain ℓ_NCE. The trainer averages over all
    queries, also those of flagged pairs.

    Ablations: without ``use_consistency`` flagged pairs are only left out (detection without correction). Without a
    detector there is no ``clean_Q``, and every pair keeps its contrastive loss (correction without detection).

    Shapes: scores and teacher scores (Q, C), clean flags (Q,) → loss (Q,).
    Source: Zhang et al. (EMNLP Findings 2023); KL(student ‖ teacher) is our reading of it.

    >>> import torch
    >>> scores_QC = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> candidates = Candidates(scores_QC=scores_QC, positive_Q=torch.tensor([0, 0]),
    ...                         excluded_QC=torch.zeros(2, 2, dtype=torch.bool),
    ...                         signals={"teacher_scores_QC": scores_QC, "clean_Q": torch.tensor([True, False])})
    >>> [round(value, 4) for value in NPC(warmup_epochs=1).compute(candidates, epoch=1).per_query_Q.tolist()]
    [0.3133, 0.0]
    """

    name: Literal["npc"] = "npc"
    warmup_epochs: int = Field(default=1, ge=0)
    """Number of epochs of plain NCE, before detection and the teacher start."""

    consistency_weight: float = Field(default=1.0, ge=0.0)
    """λ_cons, weight of the KL term; 1 in the paper."""

    consistency_every: int = Field(default=1, ge=1)
    """Interval of the KL term in steps, by which its weight is multiplied; 1 in the paper. The teacher encodes the
    batch in these steps alone, which saves time."""

    direction: Direction = "student_teacher"
    """Order of the distributions in the KL: ``student_teacher`` is KL(student ‖ teacher), as in the paper."""

    use_consistency: bool = True
    """Use the KL term; false leaves it out."""

    reads_pair_flags = True

    @property
    def needs_teacher(self) -> bool:
        return self.use_consistency and self.consistency_weight > 0

    @property
    def teacher_every(self) -> int:
        return self.consistency_every

    @property
    def num_warmup_epochs(self) -> int:
        return self.warmup_epochs

    def compute(self, candidates: Candidates, epoch: int) -> LossOutput:
        log_probs_QC = log_softmax_QC(candidates.logits_QC())
        nce_Q = -gather_positive(log_probs_QC, candidates.positive_Q)
        metrics = {"nce": nce_Q.detach().mean()}
        if epoch < self.warmup_epochs:
            return LossOutput(nce_Q, metrics)
        loss_Q = nce_Q
        clean_Q = candidates.signal(CLEAN)
        if clean_Q is not None:
            loss_Q = loss_Q * clean_Q.to(nce_Q.dtype)
            metrics["clean_share"] = clean_Q.float().mean()
        left_out = self.consistency_every > 1 and candidates.signal(TEACHER_SCORES) is None
        if self.needs_teacher and not left_out:
            consistency_Q = student_teacher_divergence(log_probs_QC, candidates, self.direction)
            consistency_Q = self.consistency_every * consistency_Q
            loss_Q = loss_Q + self.consistency_weight * consistency_Q
            metrics["consistency"] = consistency_Q.detach().mean()
        return LossOutput(loss_Q, metrics)
