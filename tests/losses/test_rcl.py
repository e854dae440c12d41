import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from raydr.component import build
from raydr.losses.base import Candidates, Loss
from raydr.losses.nce import NCE
from raydr.losses.rcl import RCL, BetaSchedule
from tests.losses.batches import gradient, random_candidates, with_weights

BETA = 0.4


def rcl(**settings):
    return RCL(beta=BetaSchedule(final=BETA, start_epoch=0), **settings)


def reference_loop(candidates: Candidates, beta: float, reduction: str) -> list[float]:
    """Query by query, candidate by candidate, in Python floats."""
    values = []
    for query, scores in enumerate(candidates.scores_QC.tolist()):
        counted = [c for c in range(len(scores)) if not candidates.excluded_QC[query, c]]
        weights = [
            1.0 if candidates.log_weight_QC is None else math.exp(candidates.log_weight_QC[query, c]) for c in counted
        ]
        log_total = math.log(sum(w * math.exp(scores[c]) for w, c in zip(weights, counted, strict=True)))
        nce = log_total - scores[int(candidates.positive_Q[query])]
        ccr = sum(w * (log_total - scores[c]) for w, c in zip(weights, counted, strict=True)) / sum(weights)
        values.append((nce / sum(weights) if reduction == "reference" else nce) - beta * ccr)
    return values


@pytest.mark.parametrize("reduction", ["paper", "reference"])
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_reference_loop(reduction, weighted):
    candidates = with_weights(random_candidates()) if weighted else random_candidates()
    got = rcl(reduction=reduction).compute(candidates, 0).per_query_Q
    assert got.tolist() == pytest.approx(reference_loop(candidates, BETA, reduction), abs=1e-5)


def test_equals_the_papers_listing():
    candidates = random_candidates(excluded=False)
    log_probs_QC = F.log_softmax(candidates.scores_QC, dim=1)
    nll = F.nll_loss(log_probs_QC, candidates.positive_Q, reduction="mean")
    listing = nll + BETA * log_probs_QC.mean(dim=1).mean()
    output = rcl().compute(candidates, 0)
    assert output.per_query_Q.mean().item() == pytest.approx(listing.item(), abs=1e-6)
    (expected_QC,) = torch.autograd.grad(listing, candidates.scores_QC)
    torch.testing.assert_close(gradient(candidates, output.per_query_Q), expected_QC)


def test_reference_reduction_is_a_larger_beta_on_a_smaller_loss():
    candidates = random_candidates(excluded=False, num_candidates=8)
    reference = RCL(beta=BetaSchedule(final=0.1, start_epoch=0), reduction="reference").compute(candidates, 0)
    paper = RCL(beta=BetaSchedule(final=0.8, start_epoch=0)).compute(candidates, 0)
    torch.testing.assert_close(reference.per_query_Q * 8, paper.per_query_Q)


@pytest.mark.parametrize(
    "loss", [RCL(beta=BetaSchedule(final=0.0, start_epoch=0)), RCL(beta=BetaSchedule(final=0.9, start_epoch=1))]
)
def test_beta_zero_is_nce(loss):
    candidates = random_candidates()
    got, nce = loss.compute(candidates, epoch=0).per_query_Q, NCE().compute(candidates, epoch=0).per_query_Q
    assert torch.equal(got, nce)
    assert torch.equal(gradient(candidates, got), gradient(candidates, nce))


@pytest.mark.parametrize("weighted", [False, True])
def test_excluded_cells_have_no_say_and_no_gradient(weighted):
    candidates = with_weights(random_candidates()) if weighted else random_candidates()
    output = rcl().compute(candidates, 0)
    gradient_QC = gradient(candidates, output.per_query_Q)
    assert torch.isfinite(gradient_QC).all()
    assert (gradient_QC[candidates.excluded_QC] == 0).all()
    assert (gradient_QC[~candidates.excluded_QC] != 0).all()
    moved = candidates.scores_QC.detach().masked_fill(candidates.excluded_QC, 50.0)
    torch.testing.assert_close(rcl().compute(replace(candidates, scores_QC=moved), 0).per_query_Q, output.per_query_Q)


def test_a_weight_of_zero_is_an_exclusion():
    candidates = random_candidates()
    log_weight_QC = torch.zeros_like(candidates.scores_QC).masked_fill(candidates.excluded_QC, float("-inf"))
    weighted = replace(
        candidates, excluded_QC=torch.zeros_like(candidates.excluded_QC), log_weight_QC=log_weight_QC.detach()
    )
    got = rcl().compute(weighted, 0).per_query_Q
    torch.testing.assert_close(got, rcl().compute(candidates, 0).per_query_Q)
    assert torch.isfinite(gradient(weighted, got)).all()


def test_shift_invariant():
    candidates = random_candidates()
    shifted = replace(candidates, scores_QC=candidates.scores_QC + 100.0)
    torch.testing.assert_close(
        rcl().compute(shifted, 0).per_query_Q, rcl().compute(candidates, 0).per_query_Q, atol=1e-4, rtol=1e-4
    )


def test_metrics():
    candidates = random_candidates()
    output = rcl().compute(candidates, 0)
    assert output.metrics["beta"].item() == pytest.approx(BETA)
    whole = output.metrics["nce"] - BETA * output.metrics["ccr"]
    assert whole.item() == pytest.approx(output.per_query_Q.mean().item(), abs=1e-5)
    assert not any(value.requires_grad for value in output.metrics.values())


def test_config_takes_a_number_for_beta():
    assert build(Loss, {"name": "rcl", "beta": 0.3}) == RCL(beta=BetaSchedule(final=0.3))


def test_advice():
    assert RCL().check("cosine") == []
    assert "unbounded" in RCL().check("dot")[0]
    assert RCL(beta=BetaSchedule(final=1e-3)).check("dot") == []
    assert "start_epoch" in RCL(beta=BetaSchedule(final=0.5, start_epoch=0)).check("cosine")[0]
    assert NCE().check("dot") == []


def test_before_beta_the_reference_reduction_is_plain_nce_too():
    """Trainings share these epochs, whatever their loss does later."""
    candidates = random_candidates()
    schedule = BetaSchedule(final=0.5, start_epoch=1)
    paper, reference = (RCL(beta=schedule, reduction=name) for name in ("paper", "reference"))
    before = [loss.compute(candidates, 0).per_query_Q for loss in (paper, reference)]
    assert torch.equal(*before)
    assert not torch.allclose(*[loss.compute(candidates, 1).per_query_Q for loss in (paper, reference)])
