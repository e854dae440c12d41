"""Token pooling: which vectors become one, and what is left of a text."""

from __future__ import annotations

import numpy as np
import pytest

from raydr.data.embeddings import VectorSets
from raydr.models.pooling import pool_tokens, pooled_count


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def test_near_vectors_become_their_mean_and_the_first_stays() -> None:
    """Three directions, two tokens of each; the first token is near to one of them and yet by itself."""
    rng = np.random.default_rng(0)
    tokens = np.repeat(np.eye(3, 8), 2, axis=0)[[0, 2, 4, 1, 3, 5]] + 0.05 * rng.standard_normal((6, 8))
    text = unit(np.concatenate([np.eye(3, 8)[:1], tokens]))
    pooled = pool_tokens(VectorSets(text.astype(np.float16), np.array([0, 7])), 2)
    assert pooled.lengths.tolist() == [4] == [pooled_count(7, 2)]
    expected = [text[0], *(unit(text[at] + text[at + 3]) for at in (1, 2, 3))]
    np.testing.assert_allclose(pooled.vectors_TD, expected, atol=2e-3)


def test_each_text_has_its_share_left_and_unit_vectors_stay_such() -> None:
    rng = np.random.default_rng(1)
    lengths = np.array([1, 2, 9, 30])
    vectors = unit(rng.standard_normal((lengths.sum(), 16))).astype(np.float16)
    sets = VectorSets(vectors, np.concatenate([[0], np.cumsum(lengths)]))
    for factor in (2, 3):
        pooled = pool_tokens(sets, factor)
        assert pooled.lengths.tolist() == [pooled_count(length, factor) for length in lengths]
        np.testing.assert_allclose(np.linalg.norm(pooled.vectors_TD.astype(np.float32), axis=1), 1, atol=2e-3)
        # A text's vectors come from it alone.
        for at in range(len(lengths)):
            alone = pool_tokens(sets.slice(at, at + 1), factor)
            np.testing.assert_array_equal(alone.vectors_TD, pooled.slice(at, at + 1).vectors_TD)
    whole = pool_tokens(sets, 1)
    np.testing.assert_array_equal(whole.vectors_TD, sets.vectors_TD)
    longer = pool_tokens(VectorSets(3 * vectors, sets.offsets), 3)
    assert np.linalg.norm(longer.vectors_TD.astype(np.float32), axis=1) == pytest.approx(3, abs=1e-2)
    assert len(pool_tokens(sets.slice(0, 0), 2)) == 0
