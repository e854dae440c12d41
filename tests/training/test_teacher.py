"""The EMA teacher."""

from __future__ import annotations

import torch
from training.harness import model_config

from raydr.models.dual_encoder import DualEncoder
from raydr.training.teacher import Teacher


def test_the_teacher_moves_by_a_share_towards_the_student(tiny_checkpoint: str) -> None:
    """θ* ← α·θ* + (1 − α)·θ."""
    student = DualEncoder.from_config(model_config(tiny_checkpoint), seed=0)
    before = {name: tensor.clone() for name, tensor in student.named_parameters()}
    teacher = Teacher(student, momentum=0.75)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(1.0)
    for step in (1, 2):
        teacher.follow(student)
        for name, tensor in teacher.model.named_parameters():
            torch.testing.assert_close(tensor, before[name] + 1.0 - 0.75**step)
