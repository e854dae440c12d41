"""The EMA teacher."""

from __future__ import annotations

import pytest
import torch
from training.harness import make_trainer, model_config

from raydr.models.dual_encoder import DualEncoder
from raydr.training.learner import Teacher


def test_the_teacher_moves_by_a_share_towards_the_student(tiny_checkpoint: str) -> None:
    """θ* ← α·θ* + (1 − α)·θ."""
    student = DualEncoder.from_config(model_config(tiny_checkpoint), seed=0)
    before = {name: tensor.clone() for name, tensor in student.named_parameters()}
    teacher = Teacher(student, momentum=0.75)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(1.0)
    for step in (1, 2):
        teacher.update(student)
        for name, tensor in teacher.model.named_parameters():
            torch.testing.assert_close(tensor, before[name] + 1.0 - 0.75**step)


@pytest.mark.parametrize("num_epochs", [1, 4])
def test_a_half_life_is_in_epochs_however_many_there_are(
    tiny_data: tuple[str, str], tiny_checkpoint: str, num_epochs: int
) -> None:
    """α^(steps of an epoch · half-life) = ½."""
    train = {"num_epochs": num_epochs, "batch_size": 8, "teacher": {"half_life": 0.5}}
    trainer = make_trainer(tiny_data, model_config(tiny_checkpoint), train)
    assert trainer.num_steps > 1
    assert trainer.learner.start_teacher().momentum ** (0.5 * trainer.num_steps) == pytest.approx(0.5)
