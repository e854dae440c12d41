"""Folds of annotated pairs: what a model is trained on and what it measures have no query and no passage in common."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raydr.errors import DataError

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def assign_folds(query_N: IntArray, passage_N: IntArray, order_N: NDArray[np.uint64], num_folds: int) -> IntArray:
    """The fold of each of N pairs, about as many pairs in each, shape (N,).

    Queries and passages are the two sides of a graph, pairs its edges: connected pairs stay together, so that no fold
    shares a passage with another. Where so many are connected that a fold could not hold them, their queries are dealt
    out one by one; :func:`trained_on` then leaves out what the folds share.

    Args:
        query_N, passage_N: which query and passage each pair has, as numbers from 0; copies have the same.
        order_N: a drawn number for each pair, the same for pairs of the same query; decides who goes where.
        num_folds: how many.

    Raises:
        DataError: there are fewer queries than folds.

    >>> assign_folds(np.arange(4), np.array([0, 0, 1, 2]), np.arange(4, dtype=np.uint64), 2).tolist()
    [0, 0, 1, 1]
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    num_queries, num_passages = int(query_N.max(initial=-1)) + 1, int(passage_N.max(initial=-1)) + 1
    if num_queries < num_folds:
        raise DataError(f"{num_queries} queries with a positive cannot be cut into {num_folds} folds: set fewer")
    edges = (np.ones(len(query_N), np.int8), (query_N, num_queries + passage_N))
    _, group_V = connected_components(coo_array(edges, shape=(num_queries + num_passages,) * 2), directed=False)
    group_N = group_V[query_N].astype(np.int64)
    too_large_N = np.bincount(group_N)[group_N] * num_folds > len(query_N)
    group_N = np.where(too_large_N, group_V.max() + 1 + query_N, group_N)
    _, group_N, sizes_G = np.unique(group_N, return_inverse=True, return_counts=True)
    first_G = np.full(len(sizes_G), np.iinfo(np.uint64).max, dtype=np.uint64)
    np.minimum.at(first_G, group_N, order_N)
    # The largest first, so that the small ones even out what these leave uneven.
    filled_F = np.zeros(num_folds, dtype=np.int64)
    fold_G = np.empty(len(sizes_G), dtype=np.int64)
    for group in np.lexsort((first_G, -sizes_G)):
        fold_G[group] = filled_F.argmin()
        filled_F[fold_G[group]] += sizes_G[group]
    return fold_G[group_N]


def trained_on(fold: int, fold_N: IntArray, passage_N: IntArray) -> BoolArray:
    """Which pairs the model of a fold is trained on: those of other folds that have no passage of its own, (N,).

    >>> trained_on(0, np.array([0, 1, 1]), np.array([5, 5, 6])).tolist()
    [False, False, True]
    """
    mine_N = fold_N == fold
    return np.asarray(~mine_N & ~np.isin(passage_N, passage_N[mine_N]))
