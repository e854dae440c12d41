"""Rules on vectors: each ranks what is wrong above what is right where vectors say so, by the judges' own rules."""

from __future__ import annotations

import numpy as np
import pytest

from raydr.evaluation.noise_measures import MethodScores, measure_ranking
from raydr.noise.judges.base import ScoredCandidates
from raydr.noise.judges.consistency import Consistency
from raydr.noise.judges.margin import Margin
from raydr.noise.vector_rules import PairVectors, centred_similarity, judge_by_vectors

NUM, DIM = 120, 16


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def made_pairs() -> tuple[PairVectors, np.ndarray]:
    """Passages lie near their queries; every third pair has another query's."""
    rng = np.random.default_rng(0)
    query_QD = unit(rng.normal(size=(NUM, DIM)))
    passage_PD = unit(query_QD + 0.15 * rng.normal(size=(NUM, DIM)))
    wrong_N = np.arange(NUM) % 3 == 0
    passage_N = np.where(wrong_N, (np.arange(NUM) + 3) % NUM, np.arange(NUM))
    return PairVectors(query_QD, passage_PD, np.arange(NUM), passage_N), wrong_N


def made_candidates() -> tuple[PairVectors, np.ndarray]:
    """Four candidates a query in mixed order, of which the first is nearly the positive."""
    rng = np.random.default_rng(1)
    query_QD = unit(rng.normal(size=(30, DIM)))
    positive_QD = unit(query_QD + 0.2 * rng.normal(size=(30, DIM)))
    near_QD = unit(positive_QD + 0.1 * query_QD)
    others = [unit(query_QD + 0.6 * rng.normal(size=(30, DIM))) for _ in range(3)]
    order = rng.permutation(120)
    passage_PD = np.concatenate([near_QD, *others, positive_QD])
    return PairVectors(query_QD, passage_PD, order % 30, order, np.arange(120, 150)), order < 30


def by_name(vectors: PairVectors) -> dict[str, MethodScores]:
    return {scores.method: scores for scores in judge_by_vectors(vectors)}


def area(wrong_N: np.ndarray, scores: MethodScores) -> float:
    return float(measure_ranking(wrong_N, scores.suspicion_N, np.ones((1, len(wrong_N))))[0, 2])


def test_rules_find_mismatched_pairs() -> None:
    vectors, wrong_N = made_pairs()
    scores = by_name(vectors)
    assert list(scores) == ["cosine", "csls", "self-confidence", "perplexity", "consistency"]
    for name, least in {
        "cosine": 0.99,
        "csls": 0.99,
        "perplexity": 0.99,
        "self-confidence": 0.7,
        "consistency": 0.99,
    }.items():
        assert area(wrong_N, scores[name]) > least, name
    assert (scores["consistency"].flagged_N == wrong_N).all()
    assert scores["self-confidence"].probability_N is not None


def test_rules_find_false_negatives() -> None:
    vectors, wrong_N = made_candidates()
    scores = by_name(vectors)
    assert list(scores) == ["cosine", "csls", "self-confidence", "nv-retriever", "gist", "near_duplicate", "sieve"]
    for name in ("cosine", "csls", "nv-retriever", "gist", "near_duplicate", "sieve"):
        assert area(wrong_N, scores[name]) > 0.95, name
    assert (scores["near_duplicate"].flagged_N == wrong_N).mean() > 0.9


def test_judges_are_asked_query_by_query_in_any_order_of_the_pairs() -> None:
    vectors, _ = made_candidates()
    asked = by_name(vectors)["nv-retriever"]
    for query in (0, 7):
        rows = np.flatnonzero(vectors.query_N == query)
        similarity_M = vectors.passage_PD[vectors.passage_N[rows]] @ vectors.query_QD[query]
        positive = float(vectors.passage_PD[120 + query] @ vectors.query_QD[query])
        verdicts = Margin().judge(ScoredCandidates.of_query(similarity_M, positive))
        assert asked.suspicion_N[rows] == pytest.approx(verdicts.score, abs=1e-6)


def test_consistency_leaves_out_the_other_passages_of_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, _ = made_pairs()
    whole = by_name(vectors)["consistency"].suspicion_N
    # In blocks of one pair the ranks are the same.
    monkeypatch.setattr("raydr.noise.vector_rules._BLOCK_CELLS", 1)
    assert (by_name(vectors)["consistency"].suspicion_N == whole).all()
    # With a second passage that is nearer, a query's first one keeps its rank.
    twice = PairVectors(
        vectors.query_QD,
        np.concatenate([vectors.passage_PD, vectors.query_QD[1:2]]),
        np.append(vectors.query_N, 1),
        np.append(vectors.passage_N, NUM),
    )
    ranks = by_name(twice)["consistency"].suspicion_N
    assert ranks[1] == whole[1] == 1
    assert Consistency().top_k >= 1


def test_centred_similarity_takes_off_what_every_text_is_near_to() -> None:
    vectors, _ = made_pairs()
    similarity_QP = vectors.query_QD.astype(float) @ vectors.passage_PD.T
    expected = 2 * similarity_QP - similarity_QP.mean(axis=1, keepdims=True) - similarity_QP.mean(axis=0)
    assert centred_similarity(vectors) == pytest.approx(expected[vectors.query_N, vectors.passage_N], abs=1e-5)
