"""The EMA teacher."""

from __future__ import annotations

import copy

import torch

from raydr.models.dual_encoder import DualEncoder
from raydr.training.batches import Batch
from raydr.training.scoring import Encodings


class Teacher:
    """An exponential moving average of the student: θ* ← α·θ* + (1−α)·θ after every optimiser step.

    Every rank keeps the same teacher: students are equal after each step, so nothing is sent. Frozen weights are shared
    with the student.
    Source: Zhang et al. (EMNLP Findings 2023).
    """

    def __init__(self, student: DualEncoder, momentum: float) -> None:
        frozen = {id(weights): weights for weights in student.parameters() if not weights.requires_grad}
        self.model = copy.deepcopy(student, frozen).eval().requires_grad_(False)
        self.momentum = momentum

    @torch.no_grad()
    def update(self, student: DualEncoder) -> None:
        """Average the student's weights after a step."""
        both = zip(self.model.parameters(), student.parameters(), strict=True)
        learning = [(own.detach(), other.detach()) for own, other in both if other.requires_grad]
        mine, theirs = [list(tensors) for tensors in zip(*learning, strict=True)]
        torch._foreach_lerp_(mine, theirs, 1.0 - self.momentum)
        for buffer, source in zip(self.model.buffers(), student.buffers(), strict=True):
            buffer.copy_(source)

    @torch.no_grad()
    def encode(self, batch: Batch) -> Encodings:
        """Encode the student's batch by the teacher."""
        query_QD, passage_PD = self.model(batch.queries, batch.passages)
        return Encodings.gathered(query_QD, passage_PD, self.model.config)
