import math

import pytest
import torch

from raydr.losses.bce import BinaryCrossEntropy
from tests.losses.batches import gradient, random_candidates, with_weights


def reference_loop(candidates):
    """Loss of each query, and the gradient of the batch's mean at each score, candidate by candidate."""
    values, gradients = [], torch.zeros_like(candidates.scores_QC)
    num_queries, num_candidates = candidates.scores_QC.shape
    for query in range(num_queries):
        counted = [c for c in range(num_candidates) if not candidates.excluded_QC[query, c]]
        log_weights = candidates.log_weight_QC
        weights = {c: 1.0 if log_weights is None else math.exp(log_weights[query, c]) for c in counted}
        total = 0.0
        for c in counted:
            probability = 1 / (1 + math.exp(-candidates.scores_QC[query, c].item()))
            label = float(c == candidates.positive_Q[query])
            total -= weights[c] * math.log(probability if label else 1 - probability)
            gradients[query, c] = weights[c] * (probability - label) / sum(weights.values()) / num_queries
        values.append(total / sum(weights.values()))
    return values, gradients


@pytest.mark.parametrize("weighted", [False, True])
def test_equals_reference_loop_with_gradients(weighted):
    candidates = with_weights(random_candidates()) if weighted else random_candidates()
    got = BinaryCrossEntropy().compute(candidates, 0).per_query_Q
    values, gradients_QC = reference_loop(candidates)
    assert got.tolist() == pytest.approx(values, abs=1e-5)
    torch.testing.assert_close(gradient(candidates, got), gradients_QC.detach(), atol=1e-6, rtol=1e-5)


def test_is_the_mean_over_pairs_of_torchs():
    candidates = random_candidates(excluded=False)
    labels_QC = torch.zeros_like(candidates.scores_QC).scatter(1, candidates.positive_Q[:, None], 1.0)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(candidates.scores_QC, labels_QC)
    torch.testing.assert_close(BinaryCrossEntropy().compute(candidates, 0).per_query_Q.mean(), expected)
