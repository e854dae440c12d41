"""Folds of annotated pairs: training and measured pairs share no query and no passage."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raydr.errors import DataError

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def assign_folds(query_N: IntArray, passage_N: IntArray, order_N: NDArray[np.uint64], num_folds: int) -> IntArray:
    """Assign each of N pairs to a fold, shape (N,); folds have about as many queries.

    An epoch draws a pair of each query, and a query of many pairs must not fill a fold alone. Pairs are edges between
    queries and passages. Connected pairs stay together, so that folds share no passage. A component too large for a
    fold is split by query; :func:`trained_on` then leaves out shared passages.

    Args:
        query_N, passage_N: numbers of each pair's query and passage, from 0; copies share a number.
        order_N: random number of each pair, equal for pairs of the same query, which determines the fold.
        num_folds: number of folds.

    Raises:
        DataError: there are fewer queries than folds.

    >>> assign_folds(np.arange(4), np.array([0, 0, 1, 2]), np.arange(4, dtype=np.uint64), 2).tolist()
    [0, 0, 1, 1]
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    num_queries, num_passages = int(query_N.max(initial=-1)) + 1, int(passage_N.max(initial=-1)) + 1
    if not num_queries:
        raise DataError("no query has a positive passage (relevance > 0), so there is no pair to judge")
    if num_queries < num_folds:
        raise DataError(
            f"there are fewer queries with a positive ({num_queries}) than folds ({num_folds}): bring more queries"
            + (", or set fewer folds" if num_folds > 2 else "")
        )
    edges = (np.ones(len(query_N), np.int8), (query_N, num_queries + passage_N))
    _, group_V = connected_components(coo_array(edges, shape=(num_queries + num_passages,) * 2), directed=False)
    group_N = group_V[query_N].astype(np.int64)
    # The first pair of each query.
    own_N = np.zeros(len(query_N), dtype=np.int64)
    own_N[np.unique(query_N, return_index=True)[1]] = 1
    too_large_N = np.bincount(group_N, own_N)[group_N] * num_folds > num_queries
    group_N = np.where(too_large_N, group_V.max() + 1 + query_N, group_N)
    _, group_N = np.unique(group_N, return_inverse=True)
    sizes_G = np.bincount(group_N, own_N).astype(np.int64)
    first_G = np.full(len(sizes_G), np.iinfo(np.uint64).max, dtype=np.uint64)
    np.minimum.at(first_G, group_N, order_N)
    # Large components first, so that small components even out the sizes.
    filled_F = np.zeros(num_folds, dtype=np.int64)
    fold_G = np.empty(len(sizes_G), dtype=np.int64)
    for group in np.lexsort((first_G, -sizes_G)):
        fold_G[group] = filled_F.argmin()
        filled_F[fold_G[group]] += sizes_G[group]
    return fold_G[group_N]


def trained_on(fold: int, fold_N: IntArray, passage_N: IntArray) -> BoolArray:
    """Return the training pairs of a fold's model: pairs of other folds without its passages, shape (N,).

    >>> trained_on(0, np.array([0, 1, 1]), np.array([5, 5, 6])).tolist()
    [False, False, True]
    """
    mine_N = fold_N == fold
    return np.asarray(~mine_N & ~np.isin(passage_N, passage_N[mine_N]))
