"""Fewer vectors a passage: those of tokens that mean about the same become their mean."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from raydr.data.opened import offsets_of
from raydr.data.vector_sets import VectorSets


def pooled_count(num_tokens: int, factor: int) -> int:
    """Vectors that are left of a passage: of its first token, and of every ``factor`` others one, rounded up.

    >>> [pooled_count(9, factor) for factor in (1, 2, 3)], pooled_count(0, 2)
    ([9, 5, 4], 0)
    """
    return min(num_tokens, 1 + -(-(num_tokens - 1) // factor))


def pool_tokens(sets: VectorSets, factor: int) -> VectorSets:
    """Cluster the vectors of each text, and take the mean of each cluster in their place.

    Hierarchical clustering by Ward's criterion, for unit vectors that of their cosines, until there are
    :func:`pooled_count` clusters; the first vector is one by itself. A mean gets the mean length of its members, so
    that unit vectors stay such. Clusters follow each other as their first tokens do.

    Source: Clavié, Chaffin and Adams, Reducing the Footprint of Multi-Vector Retrieval with Minimal Performance Impact
    via Token Pooling (2024), whose factor this is.

    Args:
        sets: the vectors of all tokens of some texts.
        factor: how many times fewer there are to be.
    """
    pooled = [_pooled(sets.vectors_TD[start:end].astype(np.float32), factor) for start, end in pairwise(sets.offsets)]
    if not pooled:
        return sets
    return VectorSets(np.concatenate(pooled).astype(np.float16), offsets_of(np.array(list(map(len, pooled)))))


def _pooled(vectors_MD: NDArray[np.float32], factor: int) -> NDArray[np.float32]:
    from scipy.cluster.hierarchy import fcluster, linkage

    num_clusters = pooled_count(len(vectors_MD), factor) - 1
    if num_clusters >= len(vectors_MD) - 1:
        return vectors_MD
    rest_MD = vectors_MD[1:]
    labels_M = fcluster(linkage(rest_MD, method="ward"), num_clusters, criterion="maxclust")
    _, first_C, cluster_M = np.unique(labels_M, return_index=True, return_inverse=True)
    cluster_M = np.argsort(np.argsort(first_C))[cluster_M]
    sizes_C = np.bincount(cluster_M)
    means_CD = np.zeros((len(sizes_C), rest_MD.shape[1]), dtype=np.float32)
    np.add.at(means_CD, cluster_M, rest_MD)
    lengths_C = np.bincount(cluster_M, np.linalg.norm(rest_MD, axis=1)) / sizes_C
    norms_C = np.linalg.norm(means_CD, axis=1)
    means_CD *= (lengths_C / np.maximum(norms_C, np.finfo(np.float32).tiny))[:, None].astype(np.float32)
    return np.concatenate([vectors_MD[:1], means_CD])
