from itertools import permutations

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.stats import chisquare

from raydr.component import build
from raydr.errors import DataError
from raydr.negatives.samplers.base import CandidateList, Sampler
from raydr.negatives.samplers.mixed import Mixed
from raydr.negatives.samplers.simans import SimANS
from raydr.negatives.samplers.softmax import Softmax
from raydr.negatives.samplers.top import Top
from raydr.negatives.samplers.uniform import Uniform
from raydr.seeding import query_rng

SCORES = np.array([3.0, 2.5, 2.0, 1.0, 0.0, -1.0])
CANDIDATES = CandidateList(SCORES, positive_score=2.2)
RANKED = [Top(), Uniform(), Softmax(), SimANS()]
NUM_DRAWS = 6000


def first_draws(sampler, candidates=CANDIDATES, num=2):
    rng = np.random.default_rng(7)
    return np.array([sampler.sample(candidates, num, rng).indices[0] for _ in range(NUM_DRAWS)])


def assert_drawn_with(indices, weights):
    expected = weights / weights.sum() * len(indices)
    assert chisquare(np.bincount(indices, minlength=len(weights)), expected).pvalue > 0.001


def test_all_are_found_by_name():
    shipped = [name for name, sampler in Sampler.choices().items() if sampler.__module__.startswith("raydr.")]
    assert shipped == ["mixed", "simans", "softmax", "top", "uniform"]


@pytest.mark.parametrize("sampler", RANKED, ids=lambda sampler: sampler.name)
class TestRanked:
    def test_distinct_and_inside_the_window(self, sampler):
        window = type(sampler)(first_rank=2, last_rank=5)
        rng = np.random.default_rng(0)
        drawn = [window.sample(CANDIDATES, 3, rng) for _ in range(300)]
        assert all(len(set(draw.indices.tolist())) == 3 and draw.num_missing == 0 for draw in drawn)
        assert set(np.concatenate([draw.indices for draw in drawn])) <= {1, 2, 3, 4}

    def test_short_list_returns_fewer_and_says_so(self, sampler):
        drawn = sampler.sample(CANDIDATES, 10, np.random.default_rng(0))
        assert sorted(drawn.indices.tolist()) == list(range(6))
        assert (drawn.num_missing, drawn.num_random) == (4, 0)

    def test_empty_window(self, sampler):
        late = type(sampler)(first_rank=50)
        for candidates in (CANDIDATES, CandidateList(np.array([]), 1.0)):
            drawn = late.sample(candidates, 3, np.random.default_rng(0))
            assert drawn.indices.size == 0
            assert drawn.num_missing == 3

    def test_same_query_and_epoch_same_draw(self, sampler):
        def sampled(query_ids, epoch=0):
            return {
                query_id: sampler.sample(CANDIDATES, 3, query_rng(1, epoch, query_id, "n")).indices.tolist()
                for query_id in query_ids
            }

        ids = [f"q{number}" for number in range(40)]
        assert sampled(ids) == sampled(ids[::-1])
        assert (sampled(ids) == sampled(ids, epoch=1)) is (sampler.name == "top")

    def test_reversed_window_is_refused(self, sampler):
        with pytest.raises(ValidationError, match="last_rank=2 is before first_rank=3"):
            type(sampler)(first_rank=3, last_rank=2)


def test_uniform_distribution():
    assert_drawn_with(first_draws(Uniform()), np.ones(6))


@pytest.mark.parametrize("smoothing", [0.0, 0.5, 1.0])
def test_softmax_first_draw(smoothing):
    assert_drawn_with(first_draws(Softmax(smoothing=smoothing)), np.exp(smoothing * SCORES))


def test_softmax_pairs_follow_sequential_sampling():
    """Without replacement: second draw ∝ exp(s) among what is left."""
    weights = np.exp(SCORES[:3])
    rng, sampler = np.random.default_rng(3), Softmax(last_rank=3)
    pairs = [tuple(sampler.sample(CANDIDATES, 2, rng).indices.tolist()) for _ in range(NUM_DRAWS)]
    expected = {
        (a, b): weights[a] / weights.sum() * weights[b] / (weights.sum() - weights[a]) * NUM_DRAWS
        for a, b in permutations(range(3), 2)
    }
    assert chisquare([pairs.count(pair) for pair in expected], list(expected.values())).pvalue > 0.001


def test_softmax_with_replacement_is_iid_and_returns_log_q():
    sampler = Softmax(smoothing=0.5, with_replacement=True, first_rank=2)
    drawn = sampler.sample(CANDIDATES, NUM_DRAWS, np.random.default_rng(1))
    assert drawn.indices.size == NUM_DRAWS
    assert drawn.num_missing == 0
    probabilities = np.exp(0.5 * SCORES[1:]) / np.exp(0.5 * SCORES[1:]).sum()
    assert_drawn_with(drawn.indices - 1, probabilities)
    np.testing.assert_allclose(np.exp(drawn.log_draw_prob), probabilities[drawn.indices - 1])


def test_softmax_without_replacement_has_no_log_q():
    assert Softmax().sample(CANDIDATES, 2, np.random.default_rng(0)).log_draw_prob is None


def test_softmax_survives_scores_that_underflow():
    far = CandidateList(np.array([2000.0, 0.0, -2000.0]))
    assert Softmax().sample(far, 3, np.random.default_rng(0)).indices.tolist() == [0, 1, 2]
    drawn = Softmax(with_replacement=True).sample(far, 50, np.random.default_rng(0))
    assert set(drawn.indices.tolist()) == {0}
    assert np.isfinite(drawn.log_draw_prob).all()


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.0), (1.0, 1.2)])
def test_simans_first_draw(a, b):
    assert_drawn_with(first_draws(SimANS(a=a, b=b)), np.exp(-a * (SCORES - 2.2 + b) ** 2))


def test_simans_positive_b_peaks_below_the_positive():
    counts = np.bincount(first_draws(SimANS(a=2.0, b=1.2)), minlength=6)
    assert counts.argmax() == 3  # score 1.0 = 2.2 − 1.2


def test_simans_survives_weights_that_underflow():
    far = CandidateList(np.array([900.0, 500.0, 100.0]), positive_score=1000.0)
    assert SimANS(a=5.0).sample(far, 2, np.random.default_rng(0)).indices.tolist() == [0, 1]


def test_simans_without_positive_score():
    unscored = CandidateList(SCORES)
    assert_drawn_with(first_draws(SimANS(), unscored), np.ones(6))


@pytest.mark.parametrize(
    ("random_share", "num", "num_random"), [(0.0, 4, 0), (0.5, 5, 2), (1.0, 4, 4), (0.29, 100, 29), (0.1, 30, 3)]
)
def test_mixed_counts(random_share, num, num_random):
    many = CandidateList(np.zeros(200))
    drawn = Mixed(random_share=random_share).sample(many, num, np.random.default_rng(0))
    assert (drawn.num_random, drawn.indices.size, drawn.num_missing) == (num_random, num - num_random, 0)


def test_mixed_passes_on_what_its_hard_sampler_says():
    sampler = build(Sampler, {"name": "mixed", "hard": {"name": "softmax", "with_replacement": True, "last_rank": 2}})
    drawn = sampler.sample(CANDIDATES, 6, np.random.default_rng(0))
    assert (drawn.num_random, drawn.indices.size) == (3, 3)
    assert set(drawn.indices.tolist()) <= {0, 1}
    assert drawn.log_draw_prob.shape == (3,)
    short = Mixed(hard=Top(last_rank=2)).sample(CANDIDATES, 10, np.random.default_rng(0))
    assert (short.num_random, short.indices.size, short.num_missing) == (5, 2, 3)


@pytest.mark.parametrize("sampler", [Softmax(), Softmax(with_replacement=True), SimANS(), Mixed(random_share=0)])
def test_candidates_without_a_score_are_refused_by_what_reads_scores(sampler):
    """They would never be drawn, or always the same ones."""
    some = CandidateList(np.array([9.0, np.nan, 7.0, np.nan]), positive_score=8.0)
    with pytest.raises(DataError, match="2 of 4 candidates of a query have no score"):
        sampler.sample(some, 2, np.random.default_rng(0))


def test_candidates_without_a_score_are_drawn_evenly_where_scores_play_no_part():
    none = CandidateList(np.full(4, np.nan))
    for sampler in (Uniform(), Top(), Softmax(smoothing=0.0)):
        assert len(set(sampler.sample(none, 4, np.random.default_rng(0)).indices.tolist())) == 4
    with pytest.raises(DataError, match="4 of 4 candidates of a query have no score"):
        SimANS().sample(none, 2, np.random.default_rng(0))


def test_top_leaves_places_empty_if_it_is_not_to_fill_them():
    drawn = Top(fill=False).sample(CandidateList(np.array([3.0, 2.0])), 5, np.random.default_rng(0))
    assert (drawn.indices.tolist(), drawn.num_missing, drawn.num_absent) == ([0, 1], 0, 3)
