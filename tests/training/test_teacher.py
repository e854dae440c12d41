"""The EMA teacher."""

from __future__ import annotations

import pytest
import torch

from raydr.models.dual_encoder import DualEncoder
from raydr.training.learner import Teacher
from training.harness import make_trainer, model_config


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


def test_a_copy_in_half_precision_encodes_as_the_average_does(tiny_data: tuple[str, str], tiny_checkpoint: str) -> None:
    """After each step, and after a resume."""
    trainer = make_trainer(tiny_data, model_config(tiny_checkpoint), {"num_epochs": 1, "batch_size": 8})
    student, batch = trainer.learner.model, next(trainer.batches.epoch(0, 0))[0]
    teacher, resumed = (Teacher(student, momentum=0.5, half=torch.bfloat16) for _ in range(2))
    before = teacher.encode(batch).passage_CD
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    teacher.update(student)
    resumed.load(teacher.model.state_dict(), frozenset())
    exact = Teacher(student, momentum=1.0)
    exact.model.load_state_dict(teacher.model.state_dict())
    expected = exact.encode(batch)
    for made in (teacher, resumed):
        encodings = made.encode(batch)
        assert next(made.model.parameters()).dtype == torch.float32
        torch.testing.assert_close(encodings.passage_CD, expected.passage_CD, atol=0.03, rtol=0)
        torch.testing.assert_close(encodings.query_QD, expected.query_QD, atol=0.03, rtol=0)
    assert float((before - expected.passage_CD).abs().max()) > 0.1
