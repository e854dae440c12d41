"""Search among passages of several vectors each equals scoring every pair."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raydr.component import build
from raydr.data.embeddings import VectorSets
from raydr.errors import ConfigError
from raydr.indexing.candidates import CandidateSearch
from raydr.indexing.config import IndexConfig
from raydr.indexing.faiss_backend import configure_search, load_faiss, make_index, resolve_factory
from raydr.indexing.search import best, search_index
from raydr.indexing.torch_search import HalfVectors, ResidualBytes, TorchSets, coded_vectors
from raydr.models.scores.base import ScoreFunction
from tests.made import integer_sets, integer_vectors

PASSAGES = integer_sets(300, 8, seed=0)
QUERIES = {"multi": integer_vectors(20, 8, seed=5), "sum_of_max": integer_sets(20, 8, seed=7).padded()}
QUERIES["genpoly"] = QUERIES["sum_of_max"]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """FAISS's threads wait for each other in loops: on a busy machine, training such small indexes takes minutes."""
    load_faiss().omp_set_num_threads(1)


def score_of(name: str) -> ScoreFunction:
    return build(ScoreFunction, name)


def pieces() -> list[VectorSets]:
    return [PASSAGES.slice(0, 120), PASSAGES.slice(120, 300)]


def half(name: str, device: str = "cpu", block_vectors: int = 200_000) -> TorchSets:
    return TorchSets(PASSAGES.lengths, HalfVectors(pieces(), device), score_of(name), block_vectors)


def brute(name: str, top_k: int) -> tuple[np.ndarray, np.ndarray]:
    """All pairs, one after the other."""
    score, padded = score_of(name), torch.from_numpy(PASSAGES.padded()).float()
    scores = np.stack(
        [
            [float(score.pairs(query, passage)) for passage in padded]
            for query in torch.from_numpy(QUERIES[name]).float()
        ]
    ).astype(np.float32)
    top = best(scores, np.broadcast_to(np.arange(300), scores.shape), top_k)
    return top.scores, top.rows


@pytest.mark.invariant
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("block_vectors", [1, 50, 200_000])
def test_exact_search_is_scoring_every_pair(name: str, block_vectors: int, device: str) -> None:
    passages = half(name, device, block_vectors)
    top = search_index(passages, QUERIES[name].astype(np.float32), 10)
    scores, rows = brute(name, 10)
    np.testing.assert_allclose(top.scores, scores, rtol=1e-5, atol=1e-5)
    if name != "genpoly":
        # Sums of integers, so equal scores are equal.
        np.testing.assert_array_equal(top.rows, rows)


@pytest.mark.invariant
@pytest.mark.parametrize("name", ["multi", "sum_of_max"])
@pytest.mark.parametrize(("factory", "num_threads"), [("Flat", 3), ("IVF4,Flat", 1), ("IVF4,SQfp16", 2)])
def test_candidates_that_cover_all_give_the_exact_search(name: str, factory: str, num_threads: int) -> None:
    index = make_index(factory, 8)
    vectors = PASSAGES.vectors_TD.astype(np.float32)
    index.train(vectors)
    index.add(vectors)
    if factory != "Flat":
        index.nprobe = 4
    searcher = CandidateSearch(index, half(name, block_vectors=100), len(vectors), 300, num_threads)
    queries, before = QUERIES[name].astype(np.float32), torch.get_num_threads()
    top = search_index(searcher, queries, 10)
    scores, rows = brute(name, 10)
    np.testing.assert_array_equal(top.rows, rows)
    np.testing.assert_array_equal(top.scores, scores)
    # A query that is asked alone is shared among the threads, which compute alone and leave the others their teams.
    lone = search_index(searcher, queries[3:4], 10)
    np.testing.assert_array_equal(lone.rows[0], rows[3])
    np.testing.assert_array_equal(lone.scores[0], scores[3])
    assert torch.get_num_threads() == before


@pytest.mark.invariant
@pytest.mark.parametrize("name", ["multi", "sum_of_max"])
def test_fewer_candidates_have_their_exact_scores(name: str) -> None:
    index = make_index("Flat", 8)
    index.add(PASSAGES.vectors_TD.astype(np.float32))
    exact = half(name)
    queries = QUERIES[name].astype(np.float32)
    top = search_index(CandidateSearch(index, exact, num_nearest=3, num_candidates=300), queries, 300)
    scores, rows = brute(name, 300)
    num_found = (top.rows >= 0).sum(axis=1)
    assert 0 < num_found.max() < 300
    assert np.isneginf(top.scores[top.rows < 0]).all()
    for at in range(len(queries)):
        expected = dict(zip(rows[at].tolist(), scores[at].tolist(), strict=True))
        kept = top.rows[at, : num_found[at]]
        assert top.scores[at, : num_found[at]].tolist() == [expected[int(row)] for row in kept]
        # The nearest vector of all is the best passage's, where one vector decides.
        assert name != "multi" or top.scores[at, 0] == scores[at, 0]


@pytest.mark.invariant
@pytest.mark.parametrize("num_nearest", [1, 5, 40])
def test_candidates_are_the_best_by_what_was_found(num_nearest: int) -> None:
    """Against loops: of each passage the largest product that was found with each vector of the query, or the smallest
    that was found with that one at all."""
    index = make_index("Flat", 8)
    vectors = np.random.default_rng(3).standard_normal((len(PASSAGES.vectors_TD), 8)).astype(np.float32)
    index.add(vectors)
    queries = np.random.default_rng(4).standard_normal((6, 3, 8)).astype(np.float32)
    queries[2, 1:] = 0
    exact = TorchSets(PASSAGES.lengths, HalfVectors(pieces(), "cpu"), score_of("sum_of_max"))
    searcher = CandidateSearch(index, exact, num_nearest, num_candidates=4)
    text = np.repeat(np.arange(300), PASSAGES.lengths)
    for query, candidates in zip(queries, searcher._candidates(queries), strict=True):
        estimates: dict[int, float] = {}
        for vector in query[query.any(axis=1)]:
            products = vectors @ vector
            nearest = np.argsort(-products)[:num_nearest]
            floor = products[nearest].min()
            best: dict[int, float] = {}
            for place in nearest:
                best[int(text[place])] = max(best.get(int(text[place]), -np.inf), products[place] - floor)
            for row, above in best.items():
                estimates[row] = estimates.get(row, 0.0) + above
        expected = sorted(estimates, key=lambda row: -estimates[row])[:4]
        assert candidates.tolist() == sorted(expected)


@pytest.mark.invariant
@pytest.mark.parametrize("factory", ["IVF4,PQ8x4np", "IVF4,SQ8", "SQ8", "PQ8x4np"])
@pytest.mark.parametrize("name", ["multi", "sum_of_max"])
def test_codes_are_scored_as_the_vectors_that_they_stand_for(name: str, factory: str) -> None:
    index = make_index(factory, 8)
    vectors = PASSAGES.vectors_TD.astype(np.float32)
    index.train(vectors)
    index.add(vectors)
    configure_search(index, nprobe=4, ef_search=1, refine_factor=1)
    held = coded_vectors(index, "cpu")
    assert isinstance(held, ResidualBytes) == (factory == "IVF4,SQ8")
    passages = TorchSets(PASSAGES.lengths, held, score_of(name), block_vectors=50)
    queries = QUERIES[name].astype(np.float32)
    top = search_index(CandidateSearch(index, passages, len(vectors), 300), queries, 10)
    if factory.startswith("IVF"):
        index.make_direct_map()
    decoded = VectorSets(index.reconstruct_batch(np.arange(len(vectors))), PASSAGES.offsets)
    padded = np.zeros((300, int(PASSAGES.lengths.max()), 8), dtype=np.float32)
    for row in range(300):
        own = decoded.vectors_TD[PASSAGES.offsets[row] : PASSAGES.offsets[row + 1]]
        padded[row, : len(own)] = own
    expected = score_of(name).all_pairs(torch.from_numpy(queries), torch.from_numpy(padded)).numpy()
    np.testing.assert_allclose(top.scores, -np.sort(-expected, axis=1)[:, :10], rtol=1e-4, atol=1e-4)


def test_sets_are_cut_taken_and_padded() -> None:
    assert len(PASSAGES) == 300
    rows = np.array([7, 0, 299, 7])
    taken = PASSAGES.take(rows)
    for at, row in enumerate(rows):
        np.testing.assert_array_equal(
            taken.vectors_TD[taken.offsets[at] : taken.offsets[at + 1]],
            PASSAGES.vectors_TD[PASSAGES.offsets[row] : PASSAGES.offsets[row + 1]],
        )
    again = VectorSets.of_padded(PASSAGES.padded().astype(np.float32))
    np.testing.assert_array_equal(again.vectors_TD, PASSAGES.vectors_TD)
    np.testing.assert_array_equal(again.offsets, PASSAGES.offsets)
    np.testing.assert_array_equal(PASSAGES.slice(5, 9).padded(), PASSAGES.take(np.arange(5, 9)).padded())
    together = VectorSets.join(pieces())
    np.testing.assert_array_equal(together.offsets, PASSAGES.offsets)


def test_the_kind_of_index_follows_from_score_and_size() -> None:
    auto = IndexConfig()
    assert resolve_factory(auto, 900_000, 128, score_of("sum_of_max"))[0] == "SQfp16"
    assert resolve_factory(auto, 5_000_000, 128, score_of("sum_of_max"))[0].startswith("IVF")
    assert resolve_factory(auto, 5_000_000, 128, score_of("genpoly"))[0] == "SQfp16"
    soft = build(ScoreFunction, {"name": "sum_of_max", "attention": "soft"})
    assert resolve_factory(auto, 5_000_000, 128, soft)[0] == "SQfp16"
    coded = IndexConfig(vectors="codes")
    assert resolve_factory(coded, 5_000_000, 128, score_of("sum_of_max"))[0] == "IVF8944,SQ8"
    assert resolve_factory(coded, 100, 64, score_of("multi"))[0] == "IVF32,SQ8"
    with pytest.raises(ConfigError, match="index.factory SQfp16 scores all passages"):
        resolve_factory(IndexConfig(vectors="codes", factory="SQfp16"), 100, 128, score_of("sum_of_max"))
    with pytest.raises(ConfigError, match="with the score function genpoly no index proposes candidates"):
        resolve_factory(coded, 100, 128, score_of("genpoly"))
    for score in (score_of("poly"), score_of("genpoly"), soft):
        with pytest.raises(ConfigError, match=f"the score function {score.name} is none: set index.factory to auto"):
            resolve_factory(IndexConfig(factory="IVF4,Flat"), 100, 128, score)
