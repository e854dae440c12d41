import math
from dataclasses import replace

import pytest
import torch

from raydr.losses.multi_positive_nce import MultiPositiveNCE
from raydr.losses.nce import NCE
from tests.losses.batches import gradient, numeric_gradient, random_candidates, with_weights


def several_positives(weighted):
    """Random candidates of which each query has up to three more positives, excluded like all it knows."""
    candidates = with_weights(random_candidates()) if weighted else random_candidates()
    further_QC = torch.rand(candidates.scores_QC.shape, generator=torch.Generator().manual_seed(5)) < 0.2
    further_QC[torch.arange(len(candidates.positive_Q)), candidates.positive_Q] = False
    further_QC[0] = False
    return replace(candidates, further_QC=further_QC, excluded_QC=candidates.excluded_QC | further_QC)


def reference_loop(candidates, over):
    values = []
    for query, first in enumerate(candidates.positive_Q.tolist()):
        scores = candidates.scores_QC[query].tolist()
        positives = [first, *torch.nonzero(candidates.further_QC[query]).flatten().tolist()]
        negatives = 0.0
        for c, score in enumerate(scores):
            if c != first and not candidates.excluded_QC[query, c]:
                weight = 1.0 if candidates.log_weight_QC is None else math.exp(candidates.log_weight_QC[query, c])
                negatives += weight * math.exp(score)
        if over == "each":
            losses = [-math.log(math.exp(scores[p]) / (math.exp(scores[p]) + negatives)) for p in positives]
            values.append(sum(losses) / len(losses))
        else:
            together = sum(math.exp(scores[p]) for p in positives)
            values.append(-math.log(together / (together + negatives)))
    return values


@pytest.mark.parametrize("over", ["each", "any"])
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_reference_loop_and_its_gradient_differences(over, weighted):
    candidates, loss = several_positives(weighted), MultiPositiveNCE(over=over)
    got = loss.compute(candidates, 0).per_query_Q
    assert got.tolist() == pytest.approx(reference_loop(candidates, over), abs=1e-5)
    expected = numeric_gradient(candidates, lambda moved: reference_loop(moved, over)).float()
    torch.testing.assert_close(gradient(candidates, got), expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("over", ["each", "any"])
def test_with_one_positive_it_is_nce(over):
    candidates = random_candidates()
    none = replace(candidates, further_QC=torch.zeros_like(candidates.excluded_QC))
    expected = NCE().compute(candidates, 0).per_query_Q
    for batch in (candidates, none):
        torch.testing.assert_close(MultiPositiveNCE(over=over).compute(batch, 0).per_query_Q, expected)


@pytest.mark.parametrize("over", ["each", "any"])
def test_a_query_without_negatives_learns_nothing_and_breaks_nothing(over):
    candidates = several_positives(weighted=False)
    first_Q = candidates.positive_Q.unsqueeze(1)
    alone = replace(candidates, excluded_QC=torch.ones_like(candidates.excluded_QC).scatter(1, first_Q, False))
    loss_Q = MultiPositiveNCE(over=over).compute(alone, 0).per_query_Q
    assert loss_Q.tolist() == [0.0] * len(loss_Q)
    assert not gradient(alone, loss_Q).any()
