import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from raydr.errors import DataError
from raydr.noise.judges.base import ACTIONS, Judge, ScoredCandidates
from raydr.noise.judges.classifier import Classifier
from raydr.noise.judges.consistency import Consistency
from raydr.noise.judges.guide import Guide
from raydr.noise.judges.language_model import LanguageModelNegatives
from raydr.noise.judges.margin import Margin
from raydr.noise.judges.near_duplicate import NearDuplicate
from raydr.noise.judges.pair_classifier import PairClassifier
from raydr.noise.judges.sieve import Sieve

ALL = [
    Margin(),
    Margin(mode="absolute", margin=0.2, action="down_weight", weight=0.3),
    Guide(),
    Sieve(),
    Sieve(rule="mean_std", num_std=0.7),
    Sieve(rule="quantile", quantile=0.3, keep_minimum=2),
    Classifier(negative_below=0.1, positives="relabel"),
    Consistency(top_k=2),
    NearDuplicate(likeness=0.4, margin=0.2),
    LanguageModelNegatives(positives="relabel"),
]


def batch(seed=0, sizes=(4, 0, 7, 1, 5, 0)):
    """Several queries, some without candidates; scores in [0, 1] so that every judge can read them."""
    rng = np.random.default_rng(seed)
    scores_M, positive_Q, likeness_M = (rng.random(size) for size in (sum(sizes), len(sizes), sum(sizes)))
    return ScoredCandidates(scores_M, np.concatenate([[0], np.cumsum(sizes)]), positive_Q, likeness_M)


def query_by_query(candidates):
    for query in range(candidates.num_queries):
        inside = slice(candidates.offsets[query], candidates.offsets[query + 1])
        positive = float(candidates.positive_scores_Q[query])
        yield inside, ScoredCandidates.of_query(candidates.scores_M[inside], positive, candidates.likeness_M[inside])


def sieve_losses(scores, positive):
    """ℓ of the negatives and then of the positive, as in algorithm 1."""
    total = math.log(sum(math.exp(score) for score in [*scores, positive]))
    return [total - score for score in [*scores, positive]]


def test_all_are_found_by_name():
    shipped = [name for name, judge in Judge.choices().items() if judge.__module__.startswith("raydr.")]
    of_scores = ["classifier", "consistency", "guide", "margin", "near_duplicate", "npc", "sieve"]
    models = ["language_model", "language_model_negatives", "pair_classifier"]
    of_people = ["calibrated", "calibrated_negatives", "people", "people_negatives"]
    assert shipped == sorted([*of_scores, *models, *of_people])


@pytest.mark.parametrize("judge", ALL, ids=lambda judge: judge.name)
def test_a_batch_is_judged_as_its_queries_one_by_one(judge):
    candidates = batch()
    whole = judge.judge(candidates)
    for query, (inside, only) in enumerate(query_by_query(candidates)):
        alone = judge.judge(only)
        part = slice(query, query + 1) if judge.subject == "pairs" else inside
        assert alone.action.tolist() == whole.action[part].tolist()
        np.testing.assert_allclose(alone.score, whole.score[part], atol=1e-12)
        np.testing.assert_allclose(alone.weight, whole.weight[part])


@pytest.mark.parametrize("judge", ALL, ids=lambda judge: judge.name)
def test_weights_follow_actions(judge):
    verdicts = judge.judge(batch(sizes=(40, 40)))
    assert set(verdicts.action.tolist()) <= set(ACTIONS)
    reduced = getattr(judge, "weight", None)
    expected = {"keep": 1.0, "drop": 0.0, "relabel": 0.0, "down_weight": reduced}
    assert verdicts.weight.tolist() == [expected[action] for action in verdicts.action.tolist()]


NEED_POSITIVES = [Margin(), Guide(), Sieve(), Consistency(), NearDuplicate()]


@pytest.mark.parametrize("judge", NEED_POSITIVES, ids=lambda judge: judge.name)
def test_a_missing_positive_score_is_an_error(judge):
    with pytest.raises(DataError, match=f"judge {judge.name} needs the score"):
        judge.judge(ScoredCandidates.of_query([1.0, 2.0]))


def test_a_near_duplicate_is_like_the_positive_and_answers_as_well():
    rule = NearDuplicate(likeness=0.8, margin=0.1)
    likeness_M = np.array([1.0, 0.81, 0.79, 0.9])
    verdicts = rule.judge(ScoredCandidates.of_query([0.7, 0.64, 0.9, 0.62], 0.7, likeness_M))
    assert verdicts.action.tolist() == ["drop", "drop", "keep", "keep"]
    np.testing.assert_allclose(verdicts.score, [0.07, 0.01, -0.01, -0.01])
    with pytest.raises(DataError, match="near_duplicate needs the likeness of each candidate"):
        rule.judge(ScoredCandidates.of_query([0.7], 0.7))
    with pytest.raises(DataError, match="got 4 likenesses for 1 scores"):
        ScoredCandidates.of_query([0.7], 0.7, likeness_M)


@pytest.mark.parametrize("judge", [Margin(margin=0.1), Guide(mode="relative", margin=0.1)])
def test_relative_margin(judge):
    assert judge.judge(ScoredCandidates.of_query([0.91, 0.89], 1.0)).action.tolist() == ["drop", "keep"]
    # 10 % below a score of −10 is −11: the limit stays below the positive.
    assert judge.judge(ScoredCandidates.of_query([-10.5, -11.5], -10.0)).action.tolist() == ["drop", "keep"]


def test_absolute_margin_and_ties():
    verdicts = Margin(mode="absolute", margin=0.5).judge(ScoredCandidates.of_query([1.5, 1.75, 3.0], 2.0))
    assert verdicts.action.tolist() == ["keep", "drop", "drop"]
    assert verdicts.score.tolist() == [0.0, 0.25, 1.5]


def test_relative_margin_out_of_range_is_refused():
    with pytest.raises(ValidationError, match="allowed: -1 to 1"):
        Margin(mode="relative", margin=5.0)


scores_and_positive = st.tuples(
    st.lists(st.floats(-30, 30), min_size=1, max_size=30), st.floats(-30, 30), st.floats(0.01, 20)
)


@given(scores_and_positive)
def test_sieve_lemma_1(drawn):
    """Every negative with softmax probability above 1 / (number of negatives + 1) is dropped."""
    scores, positive, _ = drawn
    kept = Sieve().judge(ScoredCandidates.of_query(scores, positive)).action == "keep"
    losses = sieve_losses(scores, positive)
    limit = math.log(len(scores) + 1)
    for index in range(len(scores)):
        if losses[index] < limit - 1e-9:
            assert not kept[index]


@given(scores_and_positive)
def test_sieve_equals_algorithm_1_at_any_scale(drawn):
    scores, positive, scale = drawn
    verdicts = Sieve().judge(ScoredCandidates.of_query(np.array(scores) * scale, positive * scale))
    losses = sieve_losses(scores, positive)
    mean = sum(losses) / len(losses)
    for index, loss in enumerate(losses[:-1]):
        if abs(loss - mean) > 1e-6:
            assert (verdicts.action[index] == "keep") == (loss >= mean)


@pytest.mark.parametrize("num_std", [-1.0, 0.0, 0.8])
@pytest.mark.parametrize("quantile", [0.0, 0.25, 0.5, 1.0])
def test_sieve_rules_equal_reference_loops(num_std, quantile):
    candidates = batch(seed=3)
    by_std = Sieve(rule="mean_std", num_std=num_std).judge(candidates)
    by_quantile = Sieve(rule="quantile", quantile=quantile).judge(candidates)
    for inside, only in query_by_query(candidates):
        losses = np.array(sieve_losses(only.scores_M, float(only.positive_scores_Q[0])))
        np.testing.assert_allclose(
            by_std.score[inside], losses.mean() + num_std * losses.std() - losses[:-1], atol=1e-12
        )
        np.testing.assert_allclose(by_quantile.score[inside], np.quantile(losses, quantile) - losses[:-1], atol=1e-12)
    assert ((by_std.score > 0) == (by_std.action == "drop")).all()


def test_sieve_keeps_at_least_the_minimum_and_the_least_suspicious():
    candidates = ScoredCandidates.of_query([5.0, 4.0, 3.0, 3.5], positive_score=-50.0)
    assert Sieve().judge(candidates).action.tolist() == ["drop"] * 4
    assert Sieve(keep_minimum=2).judge(candidates).action.tolist() == ["drop", "drop", "keep", "keep"]
    assert Sieve(keep_minimum=9).judge(candidates).action.tolist() == ["keep"] * 4


def test_classifier_thresholds():
    candidates = ScoredCandidates.of_query([0.05, 0.1, 0.5, 0.9, 0.91])
    assert Classifier().judge(candidates).action.tolist() == ["keep"] * 4 + ["drop"]
    rocketqa = Classifier(negative_below=0.1, positives="relabel").judge(candidates)
    assert rocketqa.action.tolist() == ["keep", "drop", "drop", "drop", "relabel"]


def test_classifier_refuses_logits_and_crossed_thresholds():
    with pytest.raises(DataError, match=r"score 1 is 3\.5"):
        Classifier().judge(ScoredCandidates.of_query([0.5, 3.5]))
    with pytest.raises(ValidationError, match="above positive_above"):
        Classifier(negative_below=0.95)


def test_pair_classifier_drops_what_is_below_its_threshold():
    pairs = ScoredCandidates(np.array([0.9, 0.5, 0.49, 0.0]), np.arange(5))
    verdicts = PairClassifier().judge(pairs)
    assert verdicts.action.tolist() == ["keep", "keep", "drop", "drop"]
    assert verdicts.score.tolist() == [1 - 0.9, 0.5, 1 - 0.49, 1.0]
    assert PairClassifier(negative_below=0.0).judge(pairs).action.tolist() == ["keep"] * 4
    with pytest.raises(DataError, match=r"judge pair_classifier reads probabilities; score 0 is -1\.0"):
        PairClassifier().judge(ScoredCandidates(np.array([-1.0]), np.arange(2)))


def test_consistency_ranks():
    candidates = ScoredCandidates(
        np.array([0.9, 0.5, 0.1, 0.9, 0.8]), np.array([0, 3, 5, 5]), np.array([0.5, 0.2, 0.0])
    )
    verdicts = Consistency(top_k=2).judge(candidates)
    assert verdicts.score.tolist() == [2.0, 3.0, 1.0]  # a copy of the positive (0.5) does not count against it
    assert verdicts.action.tolist() == ["keep", "drop", "keep"]


@pytest.mark.parametrize(
    ("scores", "offsets", "positives", "match"),
    [
        ([1.0, 2.0], [0, 1], None, "offsets"),
        ([1.0, 2.0], [1, 2], None, "offsets"),
        ([1.0, 2.0], [0, 2, 1, 2], None, "offsets"),
        ([1.0, np.nan], [0, 2], None, "score 1"),
        ([1.0, 2.0], [0, 1, 2], [0.5], "1 positive scores for 2 queries"),
        ([1.0, 2.0], [0, 1, 2], [0.5, np.nan], "positive of query 1"),
    ],
)
def test_bad_batches_are_refused(scores, offsets, positives, match):
    with pytest.raises(DataError, match=match):
        ScoredCandidates(np.array(scores), np.array(offsets), None if positives is None else np.array(positives))
