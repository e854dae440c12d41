import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from raydr.errors import ConfigError
from raydr.losses.base import Candidates
from raydr.losses.corrected_nce import CorrectedNCE
from raydr.losses.nce import NCE
from raydr.negatives.samplers.base import CandidateList
from raydr.negatives.samplers.softmax import Softmax
from tests.losses.batches import gradient, random_candidates


def test_equals_reference_loop():
    candidates = random_candidates()
    expected = []
    for query, scores in enumerate(candidates.scores_QC.tolist()):
        num_drawn = sum(candidates.hard_QC[query].tolist())
        positive = int(candidates.positive_Q[query])
        total = 0.0
        for c, score in enumerate(scores):
            if candidates.excluded_QC[query, c]:
                continue
            if candidates.hard_QC[query, c]:
                score -= math.log(num_drawn * math.exp(candidates.signals["log_draw_prob_QC"][query, c]))
            total += math.exp(score)
        expected.append(math.log(total) - scores[positive])
    got = CorrectedNCE().compute(candidates, 0).per_query_Q
    assert got.tolist() == pytest.approx(expected, abs=1e-5)


def test_gradient_is_finite_with_masks_and_unknown_probabilities_off_the_hard_cells():
    candidates = random_candidates()
    assert candidates.signals["log_draw_prob_QC"].isnan().any()
    gradient_QC = gradient(candidates, CorrectedNCE().compute(candidates, 0).per_query_Q)
    assert torch.isfinite(gradient_QC).all()
    assert (gradient_QC[candidates.excluded_QC] == 0).all()


def test_without_hard_cells_it_is_nce():
    candidates = random_candidates()
    plain = replace(candidates, hard_QC=torch.zeros_like(candidates.hard_QC))
    torch.testing.assert_close(CorrectedNCE().compute(plain, 0).per_query_Q, NCE().compute(candidates, 0).per_query_Q)


def test_missing_probabilities_are_an_error():
    candidates = random_candidates()
    for lacking in (replace(candidates, hard_QC=None), candidates.with_signals(log_draw_prob_QC=None)):
        with pytest.raises(ConfigError, match="with_replacement"):
            CorrectedNCE().compute(lacking, 0)


def test_correction_makes_the_denominator_unbiased():
    """Over many draws the corrected sum of negatives averages to that over the whole list; the plain one does not."""
    rng = np.random.default_rng(0)
    scores = np.sort(rng.normal(size=40))[::-1]
    positive_score, num, num_draws = 1.0, 5, 4000
    sampler = Softmax(smoothing=0.5, with_replacement=True)
    rows, log_q = [], []
    for _ in range(num_draws):
        drawn = sampler.sample(CandidateList(scores), num, rng)
        rows.append(scores[drawn.indices])
        log_q.append(drawn.log_draw_prob)
    column = np.full((num_draws, 1), positive_score)
    scores_QC = torch.tensor(np.hstack([column, np.array(rows)]))
    hard_QC = torch.ones(scores_QC.shape, dtype=torch.bool)
    hard_QC[:, 0] = False
    candidates = Candidates(
        scores_QC=scores_QC,
        positive_Q=torch.zeros(num_draws, dtype=torch.int64),
        excluded_QC=torch.zeros(scores_QC.shape, dtype=torch.bool),
        hard_QC=hard_QC,
        signals={"log_draw_prob_QC": torch.tensor(np.hstack([np.zeros((num_draws, 1)), np.array(log_q)]))},
    )
    true_sum = np.exp(scores).sum()
    estimates = {
        loss.name: (loss.compute(candidates, 0).per_query_Q.double().exp().numpy() - 1) * math.exp(positive_score)
        for loss in (CorrectedNCE(), NCE())
    }
    assert estimates["corrected_nce"].mean() == pytest.approx(true_sum, rel=0.02)
    assert abs(estimates["nce"].mean() - true_sum) > 0.5 * true_sum
