import math
from dataclasses import replace

import pytest
import torch

from raydr.losses.ar2 import AR2
from raydr.losses.ranker_kl import RankerKL
from tests.losses.batches import gradient, numeric_gradient, random_candidates, scored, with_weights


def reference_loop(candidates, weight, factor, temperature):
    """Query by query, candidate by candidate, in Python floats."""
    values = []
    for query, positive in enumerate(candidates.positive_Q.tolist()):
        columns, weights_QC = scored(candidates, query), candidates.log_weight_QC
        w = {c: 1.0 if weights_QC is None else math.exp(weights_QC[query, c].item()) for c in columns}
        scores, z = candidates.scores_QC[query].tolist(), candidates.signals["ranker_scores_QC"][query].tolist()
        student = {c: w[c] * math.exp(scores[c]) for c in columns}
        teacher = {c: w[c] * math.exp(z[c] / temperature) for c in columns}
        total = 0.0
        for c in columns:
            log_p = math.log(student[c] / sum(student.values()))
            reward = math.log(1 / (1 + math.exp(z[c] - z[positive])) + 1e-7)
            pi = teacher[c] / sum(teacher.values())
            total += weight * factor * reward * log_p - (1 - weight) * pi * log_p
        values.append(total)
    return values


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("weight", "factor", "temperature"), [(0.5, 1.0, 1.0), (0.3, 16.0, 3.0), (1.0, 1.0, 1.0)])
def test_equals_reference_loop_with_gradients(weighted, weight, factor, temperature):
    candidates = with_weights(random_candidates()) if weighted else random_candidates()
    loss = AR2(adversarial_weight=weight, adversarial_factor=factor, temperature=temperature)
    got = loss.compute(candidates, 0).per_query_Q
    assert got.tolist() == pytest.approx(reference_loop(candidates, weight, factor, temperature), rel=1e-4)
    expected_QC = numeric_gradient(candidates, lambda moved: reference_loop(moved, weight, factor, temperature))
    torch.testing.assert_close(gradient(candidates, got).double(), expected_QC, atol=1e-4, rtol=1e-3)


def test_without_the_adversary_it_is_distillation():
    candidates = random_candidates()
    both = [loss.compute(candidates, 0).per_query_Q for loss in (AR2(adversarial_weight=0.0), RankerKL())]
    torch.testing.assert_close(gradient(candidates, both[0]), gradient(candidates, both[1]), atol=1e-6, rtol=1e-4)


def test_the_adversary_seeks_what_fools_the_ranker():
    """Of two negatives alike to the retriever, the one that the ranker prefers to the positive is drawn nearer."""
    candidates = random_candidates(num_queries=1, num_candidates=3, excluded=False)
    positive = int(candidates.positive_Q)
    fooled, sure = (c for c in range(3) if c != positive)
    scores_QC = torch.zeros(1, 3, requires_grad=True)
    taught_QC = torch.zeros(1, 3)
    taught_QC[0, fooled], taught_QC[0, sure] = 5.0, -5.0
    moved = replace(candidates, scores_QC=scores_QC).with_signals(ranker_scores_QC=taught_QC)
    gradient_QC = gradient(moved, AR2(adversarial_weight=1.0).compute(moved, 0).per_query_Q)
    assert gradient_QC[0, fooled] < 0 < gradient_QC[0, sure]


def test_extreme_scores_stay_finite():
    candidates = random_candidates()
    extreme = candidates.with_signals(ranker_scores_QC=candidates.signals["ranker_scores_QC"] * 300)
    output = AR2().compute(extreme, 0).per_query_Q
    assert torch.isfinite(output).all()
    assert torch.isfinite(gradient(candidates, output)).all()
