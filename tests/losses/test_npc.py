from dataclasses import replace

import pytest
import torch

from raydr.errors import ConfigError
from raydr.losses.base import log_softmax_QC
from raydr.losses.nce import NCE
from raydr.losses.npc import NPC, student_teacher_divergence
from tests.losses.batches import gradient, random_candidates, with_weights


@pytest.mark.parametrize("direction", ["student_teacher", "teacher_student"])
def test_equals_gated_nce_plus_divergence_query_by_query(direction):
    candidates = random_candidates()
    assert candidates.signals["clean_Q"].any()
    assert not candidates.signals["clean_Q"].all()
    nce_Q = NCE().compute(candidates, 0).per_query_Q
    kl_Q = student_teacher_divergence(log_softmax_QC(candidates.logits_QC()), candidates, direction)
    got_Q = NPC(warmup_epochs=0, consistency_weight=0.7, direction=direction).compute(candidates, 0).per_query_Q
    for query, clean in enumerate(candidates.signals["clean_Q"].tolist()):
        expected = (nce_Q[query] if clean else 0.0) + 0.7 * kl_Q[query]
        assert got_Q[query].item() == pytest.approx(expected.item(), abs=1e-5)


def test_warmup_is_plain_nce_without_teacher_or_flags():
    candidates = random_candidates()
    bare = candidates.with_signals(teacher_scores_QC=None, clean_Q=None)
    loss = NPC(warmup_epochs=2)
    expected_Q = NCE().compute(candidates, 0).per_query_Q
    assert torch.equal(loss.compute(candidates, epoch=1).per_query_Q, expected_Q)
    assert torch.equal(loss.compute(bare, epoch=1).per_query_Q, expected_Q)
    assert not torch.equal(loss.compute(candidates, epoch=2).per_query_Q, expected_Q)


def test_after_warmup_a_missing_teacher_is_an_error():
    with pytest.raises(ConfigError, match="teacher"):
        NPC(warmup_epochs=0).compute(random_candidates().with_signals(teacher_scores_QC=None), 0)


def test_a_teacher_that_is_asked_now_and_then_counts_so_many_times():
    candidates = random_candidates()
    loss = NPC(warmup_epochs=0, consistency_weight=0.7, consistency_every=3)
    gated_Q = NCE().compute(candidates, 0).per_query_Q * candidates.signals["clean_Q"]
    kl_Q = student_teacher_divergence(log_softmax_QC(candidates.logits_QC()), candidates, "student_teacher")
    torch.testing.assert_close(loss.compute(candidates, 0).per_query_Q, gated_Q + 3 * 0.7 * kl_Q)
    without = candidates.with_signals(teacher_scores_QC=None)
    torch.testing.assert_close(loss.compute(without, 0).per_query_Q, gated_Q)


def test_detection_alone_leaves_flagged_pairs_out():
    candidates = random_candidates().with_signals(teacher_scores_QC=None)
    got_Q = NPC(warmup_epochs=0, use_consistency=False).compute(candidates, 0).per_query_Q
    torch.testing.assert_close(got_Q, NCE().compute(candidates, 0).per_query_Q * candidates.signals["clean_Q"])


def test_probabilities_weigh_pairs_and_certainty_is_plain_nce_to_the_digit():
    candidates = random_candidates().with_signals(teacher_scores_QC=None)
    loss = NPC(warmup_epochs=0, use_consistency=False)
    nce_Q = NCE().compute(candidates, 0).per_query_Q
    certain = candidates.with_signals(clean_Q=torch.ones_like(nce_Q))
    assert torch.equal(loss.compute(certain, 0).per_query_Q, nce_Q)
    assert torch.equal(gradient(certain, loss.compute(certain, 0).per_query_Q), gradient(certain, nce_Q))
    posterior_Q = torch.linspace(0.0, 1.0, len(nce_Q))
    soft = loss.compute(candidates.with_signals(clean_Q=posterior_Q), 0)
    torch.testing.assert_close(soft.per_query_Q, posterior_Q * nce_Q)
    assert soft.metrics["clean_share"].item() == pytest.approx(0.5)


def test_correction_alone_keeps_every_pair():
    candidates = random_candidates()
    loss = NPC(warmup_epochs=0)
    all_clean = candidates.with_signals(clean_Q=torch.ones_like(candidates.signals["clean_Q"]))
    undetected = loss.compute(candidates.with_signals(clean_Q=None), 0)
    assert torch.equal(undetected.per_query_Q, loss.compute(all_clean, 0).per_query_Q)
    assert "clean_share" not in undetected.metrics


@pytest.mark.parametrize("direction", ["student_teacher", "teacher_student"])
def test_gradient_is_finite_and_flagged_pairs_ignore_their_positive(direction):
    candidates = with_weights(random_candidates())
    loss = NPC(warmup_epochs=0, direction=direction)
    gradient_QC = gradient(candidates, loss.compute(candidates, 0).per_query_Q)
    assert torch.isfinite(gradient_QC).all()
    assert (gradient_QC[candidates.excluded_QC] == 0).all()
    allowed_QC = ~candidates.excluded_QC
    other_Q = torch.stack([row.nonzero().flatten()[0] for row in allowed_QC])
    moved = replace(candidates, positive_Q=torch.where(candidates.signals["clean_Q"], candidates.positive_Q, other_Q))
    torch.testing.assert_close(gradient(candidates, loss.compute(moved, 0).per_query_Q), gradient_QC)


def test_without_consistency_there_is_no_teacher_to_pay_for():
    assert NPC().needs_teacher
    assert not NPC(use_consistency=False).needs_teacher
    assert not NPC(consistency_weight=0).needs_teacher
