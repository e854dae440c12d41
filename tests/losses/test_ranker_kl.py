import math

import pytest
import torch

from raydr.errors import ConfigError
from raydr.losses.nce import NCE
from raydr.losses.ranker_kl import RankerKL
from tests.losses.batches import gradient, numeric_gradient, random_candidates, scored, with_weights


def reference_loop(candidates, temperature=1.0):
    """Query by query, candidate by candidate, in Python floats."""
    values = []
    for query in range(len(candidates.positive_Q)):
        columns = scored(candidates, query)
        logs = {
            c: 0.0 if candidates.log_weight_QC is None else candidates.log_weight_QC[query, c].item() for c in columns
        }
        distributions = []
        for matrix, divisor in ((candidates.signals["ranker_scores_QC"], temperature), (candidates.scores_QC, 1.0)):
            powers = [math.exp(matrix[query, c].item() / divisor + logs[c]) for c in columns]
            distributions.append([power / sum(powers) for power in powers])
        values.append(sum(r * math.log(r / s) for r, s in zip(*distributions, strict=True)))
    return values


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_equals_reference_loop_with_gradients(weighted, temperature):
    candidates = with_weights(random_candidates()) if weighted else random_candidates()
    assert any(len(scored(candidates, query)) > 2 for query in range(5))
    got = RankerKL(temperature=temperature).compute(candidates, 0).per_query_Q
    assert got.tolist() == pytest.approx(reference_loop(candidates, temperature), abs=1e-5)
    expected_QC = numeric_gradient(candidates, lambda moved: reference_loop(moved, temperature))
    torch.testing.assert_close(gradient(candidates, got).double(), expected_QC, atol=1e-5, rtol=1e-4)


def test_gradient_is_that_of_ar2s_second_term():
    candidates = random_candidates()
    got_QC = gradient(candidates, RankerKL().compute(candidates, 0).per_query_Q)
    unknown_QC = candidates.signals["ranker_scores_QC"].isnan() | candidates.excluded_QC
    pi_QC = candidates.signals["ranker_scores_QC"].masked_fill(unknown_QC, -torch.inf).softmax(dim=1)
    log_p_QC = candidates.scores_QC.masked_fill(unknown_QC, -torch.inf).log_softmax(dim=1)
    cross_entropy_Q = -(pi_QC * log_p_QC.masked_fill(unknown_QC, 0.0)).sum(dim=1)
    torch.testing.assert_close(got_QC, gradient(candidates, cross_entropy_Q))


def test_nce_beside_it_sees_all_candidates():
    candidates = random_candidates()
    alone, nce = (loss.compute(candidates, 0).per_query_Q for loss in (RankerKL(), NCE()))
    torch.testing.assert_close(RankerKL(nce_weight=0.5).compute(candidates, 0).per_query_Q, alone + 0.5 * nce)


def test_a_query_without_scored_negatives_and_extreme_scores_stay_finite():
    candidates = random_candidates()
    none_QC = torch.full_like(candidates.signals["ranker_scores_QC"], float("nan"))
    none_QC[torch.arange(5), candidates.positive_Q] = 1.0
    output = RankerKL().compute(candidates.with_signals(ranker_scores_QC=none_QC), 0).per_query_Q
    torch.testing.assert_close(output, torch.zeros(5))
    extreme = candidates.with_signals(ranker_scores_QC=candidates.signals["ranker_scores_QC"] * 300)
    output = RankerKL().compute(extreme, 0).per_query_Q
    assert torch.isfinite(output).all()
    assert torch.isfinite(gradient(candidates, output)).all()


def test_no_scores_are_an_error():
    with pytest.raises(ConfigError, match="reads a ranker's scores"):
        RankerKL().compute(random_candidates().with_signals(ranker_scores_QC=None), 0)
