import math

import pytest
import torch

from raydr.errors import ConfigError
from raydr.losses.base import Candidates, log_softmax_QC
from raydr.losses.npc import student_teacher_divergence
from tests.losses.batches import gradient, random_candidates, with_weights


def divergence(candidates: Candidates, direction: str) -> torch.Tensor:
    return student_teacher_divergence(log_softmax_QC(candidates.logits_QC()), candidates, direction)


def reference_loop(candidates, direction):
    values = []
    for query in range(len(candidates.positive_Q)):
        counted = [c for c in range(candidates.scores_QC.shape[1]) if not candidates.excluded_QC[query, c]]
        distributions = []
        for matrix in (candidates.scores_QC, candidates.signals["teacher_scores_QC"]):
            powers = [math.exp(matrix[query, c].item()) for c in counted]
            distributions.append([power / sum(powers) for power in powers])
        if direction == "teacher_student":
            distributions.reverse()
        values.append(sum(p * math.log(p / r) for p, r in zip(*distributions, strict=True)))
    return values


@pytest.mark.parametrize("direction", ["student_teacher", "teacher_student"])
def test_equals_reference_loop(direction):
    candidates = random_candidates()
    got = divergence(candidates, direction)
    assert got.tolist() == pytest.approx(reference_loop(candidates, direction), abs=1e-5)


@pytest.mark.parametrize("direction", ["student_teacher", "teacher_student"])
def test_gradient_is_finite_with_masks_and_does_not_reach_the_teacher(direction):
    candidates = with_weights(random_candidates())
    teacher_scores_QC = candidates.signals["teacher_scores_QC"].clone().requires_grad_()
    divergence(candidates.with_signals(teacher_scores_QC=teacher_scores_QC), direction).mean().backward()
    assert teacher_scores_QC.grad is None
    gradient_QC = candidates.scores_QC.grad
    assert torch.isfinite(gradient_QC).all()
    assert (gradient_QC[candidates.excluded_QC] == 0).all()
    assert (gradient_QC[~candidates.excluded_QC] != 0).any()


@pytest.mark.parametrize("direction", ["student_teacher", "teacher_student"])
def test_zero_at_the_teacher_and_shift_invariant(direction):
    candidates = random_candidates()
    same = candidates.with_signals(teacher_scores_QC=candidates.scores_QC.detach() + 7.0)
    output = divergence(same, direction)
    torch.testing.assert_close(output, torch.zeros_like(output), atol=1e-5, rtol=0)
    torch.testing.assert_close(gradient(candidates, output), torch.zeros_like(candidates.scores_QC), atol=1e-5, rtol=0)


def test_extreme_scores_stay_finite():
    candidates = random_candidates()
    extreme = candidates.with_signals(teacher_scores_QC=-300.0 * candidates.scores_QC.detach())
    for direction in ("student_teacher", "teacher_student"):
        output = divergence(extreme, direction)
        assert torch.isfinite(output).all()
        assert torch.isfinite(gradient(candidates, output)).all()


def test_no_teacher_is_an_error():
    with pytest.raises(ConfigError, match="teacher"):
        divergence(random_candidates().with_signals(teacher_scores_QC=None), "student_teacher")
