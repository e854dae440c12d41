"""From the hidden states of a text's tokens to the vectors that the score function reads."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raydr.data.embeddings import VectorSets
from raydr.data.parts import offsets_of
from raydr.models.config import Pooling
from raydr.models.scores.base import Vectors


class Reduction(nn.Module):
    """The mean of all states, the first or the last (``pooled``), the first m', m' learnt codes that attend over all,
    or all.

    Code c of the states h_1..h_L is Σ_t softmax_t(c·h_t) h_t (Humeau et al., ICLR 2020). Padding is never attended to;
    where texts have fewer vectors than the longest, the places that are left are zeros.
    """

    def __init__(self, vectors: Vectors, pooling: Pooling, hidden: int) -> None:
        super().__init__()
        self.vectors = vectors
        self.pooling = pooling
        self.codes: nn.Parameter | None = None
        if vectors.kind == "codes":
            self.codes = nn.Parameter(torch.randn(vectors.num, hidden) / math.sqrt(hidden))

    def forward(self, hidden_NLD: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return states (N, D) or (N, M, D) in float32, and the mask of the latter, (N, M); None if all are vectors."""
        if self.codes is not None:
            logits_NML = torch.einsum("md,nld->nml", self.codes.float(), hidden_NLD.float())
            lowest = torch.finfo(logits_NML.dtype).min
            weights_NML = logits_NML.masked_fill(attention_mask.unsqueeze(1) == 0, lowest).softmax(-1)
            return weights_NML @ hidden_NLD.float(), None
        if self.vectors.several:
            most = self.vectors.most(hidden_NLD.shape[1])
            return hidden_NLD[:, :most].float(), attention_mask[:, :most] != 0
        if self.pooling == "cls":
            return hidden_NLD[:, 0].float(), None
        if self.pooling == "last":
            # Padding is at the end.
            last_N = attention_mask.sum(1).clamp(min=1) - 1
            return hidden_NLD[torch.arange(len(last_N), device=last_N.device), last_N].float(), None
        mask_NL1 = attention_mask.unsqueeze(-1).to(torch.float32)
        return (hidden_NLD.float() * mask_NL1).sum(1) / mask_NL1.sum(1).clamp(min=1), None


def pooled_count(num_tokens: int, factor: int) -> int:
    """Return the number of vectors left of a passage: its first token's, and a ``factor``-th of the others, rounded up.

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
