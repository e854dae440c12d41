"""Kullback–Leibler divergence between two score distributions over the same candidates."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from raydr.errors import ConfigError
from raydr.losses.base import TEACHER_SCORES, Candidates, Loss, LossOutput, log_softmax_QC

if TYPE_CHECKING:
    from torch import Tensor

#: ``student_teacher`` is KL(student ‖ teacher), ``teacher_student`` is KL(teacher ‖ student).
Direction = Literal["student_teacher", "teacher_student"]


def kl_divergence(log_probs_QC: Tensor, log_reference_QC: Tensor) -> Tensor:
    """Compute KL(p ‖ r) = Σ_c p_c · (log p_c − log r_c) of each row, shape (Q,); cells with p_c = 0 add nothing."""
    dead_QC = log_probs_QC.isneginf()
    # Both logs are −inf at excluded cells: filled before they meet, so that no pass sees −inf − (−inf).
    log_ratio_QC = log_probs_QC.masked_fill(dead_QC, 0.0) - log_reference_QC.masked_fill(dead_QC, 0.0)
    return (log_probs_QC.exp() * log_ratio_QC).sum(dim=1)


def student_teacher_divergence(
    log_student_QC: Tensor, candidates: Candidates, direction: Direction, temperature: float = 1.0
) -> Tensor:
    """Compute KL between the student's and the teacher's softmax over each query's candidates, shape (Q,).

    Masks and weights apply to both alike; no gradient flows into the teacher.

    Args:
        log_student_QC: the student's log-softmax, at the temperature.
        candidates: where the teacher's scores are.
        direction: which distribution comes first.
        temperature: divisor of the teacher's scores.
    """
    teacher_scores_QC = candidates.signal(TEACHER_SCORES)
    if teacher_scores_QC is None:
        raise ConfigError("the loss reads a teacher, and the step has no teacher scores: keep a teacher, or use nce")
    teacher = replace(candidates, scores_QC=teacher_scores_QC.detach())
    log_teacher_QC = log_softmax_QC(teacher.logits_QC() / temperature)
    if direction == "student_teacher":
        return kl_divergence(log_student_QC, log_teacher_QC)
    return kl_divergence(log_teacher_QC, log_student_QC)


class Distillation(Loss):
    """The student's distribution over the candidates follows the teacher's, whatever the annotated positive is.

    ℓ(q) = KL(p_θ(·|q) ‖ p_θ*(·|q)) or the other direction, with p = softmax(scores / temperature) over the candidates
    that are not excluded. Not scaled by temperature²: with a temperature other than 1 adapt the learning rate.

    Shapes: scores and teacher scores (Q, C) → loss (Q,).
    Source: L_cons of Zhang et al. (EMNLP Findings 2023) for ``student_teacher``. ``teacher_student`` is
    the usual direction when a cross-encoder teaches.

    >>> import torch
    >>> candidates = Candidates(scores_QC=torch.tensor([[2.0, 0.0]]), positive_Q=torch.tensor([0]),
    ...                         excluded_QC=torch.zeros(1, 2, dtype=torch.bool),
    ...                         signals={"teacher_scores_QC": torch.tensor([[0.0, 0.0]])})
    >>> round(Distillation(direction="student_teacher").compute(candidates, epoch=0).per_query_Q.item(), 4)
    0.3278
    """

    name: Literal["distillation"] = "distillation"
    direction: Direction = "teacher_student"
    """Which distribution comes first in the KL."""

    temperature: float = Field(default=1.0, gt=0.0)
    """Divisor of both score matrices."""

    @property
    def needs_teacher(self) -> bool:
        return True

    def check(self, similarity: Literal["cosine", "dot"]) -> list[str]:
        return [
            "distillation alone never reads the annotated positive, and the only teacher is an average of the model "
            "itself: there is nothing to learn from; take npc, which adds it to the contrastive loss"
        ]

    def compute(self, candidates: Candidates, epoch: int) -> LossOutput:
        log_student_QC = log_softmax_QC(candidates.logits_QC() / self.temperature)
        return LossOutput(student_teacher_divergence(log_student_QC, candidates, self.direction, self.temperature))
