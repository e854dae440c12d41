from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from raydr.indexing.config import SearchConfig
from raydr.indexing.faiss_backend import MATRIX_PRODUCT_FROM, load_faiss, make_index
from raydr.indexing.search import QUERIES_PER_THREAD, TIE_LIMIT, ShardSearcher, best, search_index
from raydr.indexing.shards import IndexShards
from raydr.models.scores.dual import Dual
from tests.made import integer_vectors


@pytest.mark.invariant
@pytest.mark.parametrize("factory", ["Flat", "SQfp16"])
@pytest.mark.parametrize("top_k", [1, 10, 100, 299, 300, 350])
def test_ties_at_the_cut_are_settled_by_row(factory: str, top_k: int) -> None:
    """On exact scores with many ties the result is the sort of all passages."""
    passages = integer_vectors(300, 4, seed=1).astype(np.float32)
    queries = integer_vectors(40, 4, seed=2).astype(np.float32)
    index = make_index(factory, 4)
    index.add(passages)
    scores = queries @ passages.T
    expected = best(scores, np.broadcast_to(np.arange(300), scores.shape), top_k)
    top = search_index(index, queries, top_k)
    assert top.rows.shape == (40, top_k)
    np.testing.assert_array_equal(top.rows[:, :300], expected.rows)
    np.testing.assert_array_equal(top.scores[:, :300], expected.scores)
    assert (top.rows[:, 300:] == -1).all()


def test_a_collapsed_encoder_does_not_fetch_the_corpus() -> None:
    index = make_index("Flat", 4)
    index.add(np.ones((TIE_LIMIT * 3, 4), dtype=np.float32))
    widths = []

    class Watched:
        ntotal = index.ntotal

        def search(self, queries: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
            widths.append(width)
            return index.search(queries, width)

    top = search_index(Watched(), np.ones((3, 4), dtype=np.float32), 10)
    assert (top.scores == 4).all()
    assert max(widths) == TIE_LIMIT + 10


def test_an_empty_shard_finds_nothing() -> None:
    top = search_index(make_index("Flat", 4), np.ones((2, 4), dtype=np.float32), 3)
    assert (top.rows == -1).all()
    assert np.isneginf(top.scores).all()


class MadeShards:
    """Two shards of 150 passages with many equal scores."""

    score = Dual()
    several = False
    partitions = ("", "")

    def __init__(self, factory: str) -> None:
        self.factory = factory
        self.starts = np.array([0, 150, 300])

    def load(self, shard: int) -> Any:
        index = make_index(self.factory, 4)
        passages = integer_vectors(300, 4, seed=1).astype(np.float32)[shard * 150 : (shard + 1) * 150]
        index.train(passages)
        index.add(passages)
        return index


def test_a_search_leaves_the_process_its_number_of_threads() -> None:
    """PyTorch shares it: its trainings would compute with teams of threads that only wait for each other."""
    faiss = load_faiss()
    faiss.omp_set_num_threads(1)
    ShardSearcher(cast(IndexShards, MadeShards("Flat")), [0], SearchConfig(), 3).search(integer_vectors(2, 4, 2), 5)
    assert faiss.omp_get_max_threads() == 1


@pytest.mark.invariant
@pytest.mark.parametrize("factory", ["Flat", "SQfp16", "IVF4,Flat"])
@pytest.mark.parametrize("num_queries", [1, 2 * QUERIES_PER_THREAD - 1, 3 * QUERIES_PER_THREAD + 57])
def test_threads_that_share_the_queries_find_what_one_finds(factory: str, num_queries: int) -> None:
    queries = integer_vectors(num_queries, 4, seed=2)
    shards = cast(IndexShards, MadeShards(factory))
    expected = ShardSearcher(shards, [0, 1], SearchConfig(nprobe=4), num_threads=1).search(queries, 20)
    for num_threads in (2, 3):
        top = ShardSearcher(shards, [0, 1], SearchConfig(nprobe=4), num_threads).search(queries, 20)
        np.testing.assert_array_equal(top.rows, expected.rows)
        np.testing.assert_array_equal(top.scores, expected.scores)


def test_a_small_batch_is_a_matrix_product_too() -> None:
    """FAISS 1.15 would search 300 queries of 384 dimensions one by one, ten times as slowly."""
    assert load_faiss().cvar.distance_compute_blas_threshold == MATRIX_PRODUCT_FROM < 300 * 384
