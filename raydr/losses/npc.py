"""Noisy Pair Corrector: flagged pairs learn from the teacher's soft label alone."""

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

    Masks and weights apply to both alike; no gradient flows into the teacher.

    Args:
        log_student_QC: the student's log-softmax.
        candidates: where the teacher's scores are.
        direction: which distribution comes first.
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
    """Contrastive loss on the pairs that the detector trusts, consistency with an EMA teacher on all.

    ℓ(q) = ŷ_q · ℓ_NCE(p⁺, q) + λ_cons · KL(p_θ(·|q) ‖ p_θ*(·|q)). ŷ_q is 0 where the noise detector flagged the pair
    and 1 elsewhere, or its p(clean), which is not in the paper. The warm-up epochs are plain ℓ_NCE. The trainer
    averages over all queries, flagged ones included.

    Ablations: without ``use_consistency`` flagged pairs are only left out (detection without correction). Without a
    detector there is no ``clean_Q``, and every pair keeps its contrastive loss (correction without detection).

    Shapes: scores and teacher scores (Q, C), clean flags (Q,) → loss (Q,).
    Source: Zhang et al. (EMNLP Findings 2023); KL of student from teacher is our reading of it.

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
    """Epochs of plain NCE, before detection and teacher start."""

    consistency_weight: float = Field(default=1.0, ge=0.0)
    """λ_cons; the paper's loss has 1."""

    consistency_every: int = Field(default=1, ge=1)
    """Steps from one use of the KL term to the next; its weight is multiplied by this number. The teacher encodes the
    batch in these steps alone, which saves its time in the others. 1 is the paper's."""

    direction: Direction = "student_teacher"
    """Which distribution comes first in the KL; the paper's is ``student_teacher``."""

    use_consistency: bool = True
    """False leaves the KL term out."""

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
