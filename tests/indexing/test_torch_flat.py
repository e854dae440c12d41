from __future__ import annotations

import numpy as np
import pytest
import torch

from raydr.indexing.faiss_backend import EXACT, make_index
from raydr.indexing.search import search_index
from raydr.indexing.torch_search import TorchFlat
from raydr.models.scores.dual import Dual
from tests.made import integer_vectors

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.invariant
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("factory", EXACT)
@pytest.mark.parametrize("top_k", [1, 10, 300, 350])
def test_pytorch_finds_what_faiss_finds(factory: str, top_k: int, device: str) -> None:
    """With many equal scores, and so little memory that the vectors are looked at in several pieces."""
    index = make_index(factory, 4)
    index.add(integer_vectors(300, 4, seed=1).astype(np.float32))
    queries = integer_vectors(40, 4, seed=2).astype(np.float32)
    expected = search_index(index, queries, top_k)
    for score_bytes in (40 * 4 * 37, 2**20):
        top = search_index(TorchFlat.of_index(index, Dual(), device, score_bytes), queries, top_k)
        np.testing.assert_array_equal(top.rows, expected.rows)
        np.testing.assert_array_equal(top.scores, expected.scores)


@pytest.mark.invariant
@pytest.mark.parametrize("device", DEVICES)
def test_scores_of_real_numbers_are_close_and_queries_are_not_rounded(device: str) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((500, 64)).astype(np.float16)
    index = make_index("SQfp16", 64)
    index.add(vectors.astype(np.float32))
    # Not numbers of half precision.
    queries = rng.standard_normal((20, 64)).astype(np.float32)
    exact = queries.astype(np.float64) @ vectors.astype(np.float64).T
    scores, rows = TorchFlat.of_index(index, Dual(), device).search(queries, 10)
    np.testing.assert_allclose(scores, np.take_along_axis(exact, rows, axis=1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(scores, -np.sort(-exact, axis=1)[:, :10], rtol=1e-5, atol=1e-5)


def test_an_empty_shard_finds_nothing() -> None:
    top = search_index(TorchFlat.of_index(make_index("Flat", 4), Dual(), "cpu"), np.ones((2, 4), dtype=np.float32), 3)
    assert (top.rows == -1).all()


def test_vectors_are_held_in_half_precision() -> None:
    index = make_index("Flat", 8)
    index.add(np.ones((10, 8), dtype=np.float32))
    assert TorchFlat.of_index(index, Dual(), "cpu")._vectors_ND.dtype == torch.float16
