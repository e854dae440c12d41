"""Folds: connected pairs stay together, and no model is trained on what it measures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydr.errors import DataError
from raydr.noise.folds import assign_folds, trained_on


def test_a_query_of_most_pairs_does_not_fill_a_fold_alone() -> None:
    """Its margins need passages of others in its fold, and the other model more than one query."""
    query_N = np.array([0] * 90 + list(range(1, 11)))
    fold_N = assign_folds(query_N, np.arange(100), query_N.astype(np.uint64), 2)
    assert sorted(len(set(query_N[fold_N == fold])) for fold in (0, 1)) == [5, 6]


def order_of(query_N):
    return (np.asarray(query_N, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(7)


@given(
    pairs=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=20, max_size=80, unique=True),
    num_folds=st.integers(2, 4),
)
def test_no_fold_is_trained_on_a_query_or_a_passage_of_its_own(pairs, num_folds):
    query_N, passage_N = (np.unique(side, return_inverse=True)[1] for side in np.array(pairs).T)
    if query_N.max() + 1 < num_folds:
        return
    fold_N = assign_folds(query_N, passage_N, order_of(query_N), num_folds)
    for fold in range(num_folds):
        used_N = trained_on(fold, fold_N, passage_N)
        mine_N = fold_N == fold
        assert not np.intersect1d(query_N[used_N], query_N[mine_N]).size
        assert not np.intersect1d(passage_N[used_N], passage_N[mine_N]).size


def test_connected_pairs_are_in_one_fold_and_folds_are_even():
    rng = np.random.default_rng(0)
    query_N = np.arange(300)
    passage_N = rng.integers(200, size=300)
    fold_N = assign_folds(query_N, passage_N, order_of(query_N), 3)
    assert np.bincount(fold_N).tolist() == [100, 100, 100]
    for passage in np.unique(passage_N):
        assert len(np.unique(fold_N[passage_N == passage])) == 1
    # So nothing is left out.
    assert [trained_on(fold, fold_N, passage_N).sum() for fold in range(3)] == [200, 200, 200]


def test_queries_that_hang_together_by_one_passage_are_dealt_out():
    query_N = np.arange(100)
    passage_N = np.where(query_N < 80, 0, query_N)
    fold_N = assign_folds(query_N, passage_N, order_of(query_N), 2)
    assert np.bincount(fold_N).tolist() == [50, 50]
    used_N = trained_on(0, fold_N, passage_N)
    # What is trained on has none of the shared passage.
    assert (passage_N[used_N] > 0).all()
    assert 0 < used_N.sum() <= 20


def test_folds_do_not_depend_on_the_order_of_the_pairs_and_differ_with_the_seed():
    query_N, passage_N = np.arange(60), np.arange(60) // 2
    shuffled = np.random.default_rng(0).permutation(60)
    first = assign_folds(query_N, passage_N, order_of(query_N), 2)
    again = assign_folds(query_N[shuffled], passage_N[shuffled], order_of(query_N)[shuffled], 2)
    assert np.array_equal(first[shuffled], again)
    other = assign_folds(query_N, passage_N, order_of(query_N) ^ np.uint64(0xABCDEF123456789), 2)
    assert (other != first).any()


def test_more_folds_than_queries_are_refused():
    with pytest.raises(DataError, match=r"fewer queries with a positive \(2\) than folds \(3\)"):
        assign_folds(np.array([0, 1]), np.array([0, 1]), np.array([5, 6], dtype=np.uint64), 3)
    none = np.array([], dtype=np.int64)
    with pytest.raises(DataError, match="no query has a positive passage"):
        assign_folds(none, none, none.astype(np.uint64), 2)
