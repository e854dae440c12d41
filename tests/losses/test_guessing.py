"""The loss of a model that cannot tell a query's candidates apart."""

import math

import pytest
import torch

from raydr.losses.base import Candidates
from raydr.losses.bce import BinaryCrossEntropy
from raydr.losses.nce import NCE
from raydr.losses.npc import NPC
from raydr.losses.rcl import RCL
from raydr.losses.schedule import BetaSchedule
from tests.losses.batches import random_candidates, with_weights

GATED = NPC(warmup_epochs=0, use_consistency=False)


def guessed(loss, candidates: Candidates, add: float = 0.0) -> torch.Tensor:
    scores_QC = loss.guess_QC(candidates) + add
    return loss.compute(Candidates(**{**vars(candidates), "scores_QC": scores_QC}), 0).per_query_Q


def one_list(size: int) -> Candidates:
    return Candidates(torch.randn(1, size), torch.tensor([0]), torch.zeros(1, size, dtype=torch.bool))


def test_of_a_softmax_it_is_the_logarithm_of_the_lists_weight():
    assert guessed(NCE(), one_list(9)).item() == pytest.approx(math.log(9))
    candidates = with_weights(random_candidates())
    weight_Q = candidates.log_weight_QC.exp().masked_fill(candidates.excluded_QC, 0.0).sum(dim=1)
    torch.testing.assert_close(guessed(NCE(), candidates), weight_Q.log())
    # A flagged pair has no loss, and CCR is as large as NCE.
    torch.testing.assert_close(guessed(GATED, candidates), weight_Q.log() * candidates.clean_Q)
    half = RCL(beta=BetaSchedule(final=0.5, start_epoch=0))
    assert guessed(half, one_list(9)).item() == pytest.approx(0.5 * math.log(9))


def test_of_binary_cross_entropy_it_is_the_entropy_of_the_share_of_positives():
    bce = BinaryCrossEntropy()
    assert guessed(bce, one_list(2)).item() == pytest.approx(math.log(2))
    assert guessed(bce, one_list(4)).item() == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75))


@pytest.mark.parametrize("weighted", [False, True])
def test_no_other_equal_scores_lose_less(weighted):
    candidates = with_weights(random_candidates()) if weighted else random_candidates()
    for loss in (NCE(), BinaryCrossEntropy(), GATED):
        least_Q = guessed(loss, candidates)
        for add in (-0.1, 0.1):
            assert (guessed(loss, candidates, add) >= least_Q - 1e-6).all()
