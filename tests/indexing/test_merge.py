from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest

from raydr.artefacts.run import rank_rows
from raydr.indexing.search import TopRows, best, merge, rank_top_rows


def test_equal_scores_are_ordered_by_row() -> None:
    scores = np.array([[1.0, 2.0, 2.0, 2.0]], dtype=np.float32)
    assert best(scores, np.array([[0, 7, 3, 5]]), 3).rows.tolist() == [[3, 5, 7]]


def test_an_unfilled_place_is_last_and_has_no_score() -> None:
    top = best(np.array([[9.0, -4.0]], dtype=np.float32), np.array([[-1, 6]]), 2)
    assert top.rows.tolist() == [[6, -1]]
    assert top.scores.tolist() == [[-4.0, -np.inf]]


@pytest.mark.invariant
@pytest.mark.parametrize("cuts", [[0, 50, 100], [0, 1, 3, 99, 100], [0, 100]])
def test_merged_shards_equal_one_sort_of_everything(cuts: list[int]) -> None:
    scores = np.random.default_rng(0).integers(0, 10, size=(20, 100)).astype(np.float32)
    rows = np.broadcast_to(np.arange(100), scores.shape)
    whole = best(scores, rows, 10)
    parts = [best(scores[:, a:b], rows[:, a:b], 10) for a, b in itertools.pairwise(cuts)]
    merged = merge(parts, 10)
    np.testing.assert_array_equal(merged.rows, whole.rows)
    np.testing.assert_array_equal(merged.scores, whole.scores)


def test_merge_cuts_a_single_shard_too() -> None:
    part = TopRows(np.array([[3.0, 2.0]], dtype=np.float32), np.array([[1, 0]]))
    assert merge([part], 1).rows.tolist() == [[1]]


def test_ranks_are_those_of_trec_eval() -> None:
    rng = np.random.default_rng(3)
    scores = rng.integers(0, 6, size=(12, 40)).astype(np.float32)
    rows = np.where(rng.random((12, 40)) < 0.1, -1, rng.permuted(np.broadcast_to(np.arange(40), (12, 40)), axis=1))
    top = best(scores, rows, 25)
    filled = top.rows >= 0
    queries = pa.array([f"q{at}" for at in range(12)])
    passages = pa.array([f"p{row}" for row in top.rows[filled]])
    owners = queries.take(pa.array(np.nonzero(filled)[0]))
    assert rank_top_rows(queries, passages, top).equals(rank_rows(owners, passages, pa.array(top.scores[filled])))
