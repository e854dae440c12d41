from __future__ import annotations

import numpy as np
import pytest

from raydr.indexing.factory import make_index
from raydr.indexing.merge import best
from raydr.indexing.search import TIE_LIMIT, search_one
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
    found = search_one(index, queries, top_k)
    assert found.rows.shape == (40, top_k)
    np.testing.assert_array_equal(found.rows[:, :300], expected.rows)
    np.testing.assert_array_equal(found.scores[:, :300], expected.scores)
    assert (found.rows[:, 300:] == -1).all()


def test_a_collapsed_encoder_does_not_fetch_the_corpus() -> None:
    index = make_index("Flat", 4)
    index.add(np.ones((TIE_LIMIT * 3, 4), dtype=np.float32))
    widths = []

    class Watched:
        ntotal = index.ntotal

        def search(self, queries: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
            widths.append(width)
            return index.search(queries, width)

    found = search_one(Watched(), np.ones((3, 4), dtype=np.float32), 10)
    assert (found.scores == 4).all()
    assert max(widths) == TIE_LIMIT + 10


def test_an_empty_shard_finds_nothing() -> None:
    found = search_one(make_index("Flat", 4), np.ones((2, 4), dtype=np.float32), 3)
    assert (found.rows == -1).all()
    assert np.isneginf(found.scores).all()
