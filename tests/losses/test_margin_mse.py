import math

import pytest
import torch

from raydr.errors import ConfigError
from raydr.losses.margin_mse import MarginMSE
from raydr.losses.nce import NCE
from tests.losses.batches import gradient, numeric_gradient, random_candidates, scored, with_weights


def reference_loop(candidates, temperature=1.0):
    """Query by query, candidate by candidate, in Python floats."""
    values = []
    for query, positive in enumerate(candidates.positive_Q.tolist()):
        scores, taught = candidates.scores_QC[query].tolist(), candidates.signals["ranker_scores_QC"][query].tolist()
        total = weights = 0.0
        for c in scored(candidates, query):
            if c == positive:
                continue
            weight = 1.0 if candidates.log_weight_QC is None else math.exp(candidates.log_weight_QC[query, c])
            margin, wanted = scores[positive] - scores[c], (taught[positive] - taught[c]) / temperature
            total, weights = total + weight * (margin - wanted) ** 2, weights + weight
        values.append(total / weights if weights else 0.0)
    return values


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_equals_reference_loop_with_gradients(weighted, temperature):
    candidates = with_weights(random_candidates()) if weighted else random_candidates()
    got = MarginMSE(temperature=temperature).compute(candidates, 0).per_query_Q
    assert got.tolist() == pytest.approx(reference_loop(candidates, temperature), rel=1e-5)
    expected_QC = numeric_gradient(candidates, lambda moved: reference_loop(moved, temperature))
    torch.testing.assert_close(gradient(candidates, got).double(), expected_QC, atol=1e-4, rtol=1e-4)


def test_zero_where_margins_agree_whatever_the_level():
    candidates = random_candidates()
    same_QC = (candidates.scores_QC.detach() + 7.0).where(~candidates.signals["ranker_scores_QC"].isnan(), float("nan"))
    output = MarginMSE().compute(candidates.with_signals(ranker_scores_QC=same_QC), 0).per_query_Q
    torch.testing.assert_close(output, torch.zeros(5), atol=1e-9, rtol=0)


def test_nce_beside_it_sees_all_candidates_and_a_query_without_scored_negatives_is_zero():
    candidates = random_candidates()
    alone, nce = (loss.compute(candidates, 0).per_query_Q for loss in (MarginMSE(), NCE()))
    torch.testing.assert_close(MarginMSE(nce_weight=0.5).compute(candidates, 0).per_query_Q, alone + 0.5 * nce)
    none_QC = torch.full_like(candidates.signals["ranker_scores_QC"], float("nan"))
    none_QC[torch.arange(5), candidates.positive_Q] = 1.0
    bare = MarginMSE().compute(candidates.with_signals(ranker_scores_QC=none_QC), 0).per_query_Q
    torch.testing.assert_close(bare, torch.zeros(5))
    assert torch.isfinite(gradient(candidates, bare)).all()


def test_no_scores_are_an_error():
    with pytest.raises(ConfigError, match="reads a ranker's scores"):
        MarginMSE().compute(random_candidates().with_signals(ranker_scores_QC=None), 0)
