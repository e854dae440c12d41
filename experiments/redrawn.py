"""Candidate negatives from the model's own distribution over the whole corpus, or a query's world, as training goes on.

Zhang and Stratos (NAACL 2021) draw hard negatives anew in every epoch, after scoring the training queries against all
passages. Only the best of them are kept here: below, the model's distribution has next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.live_encoder import LiveEncoder
from raydr.data.corpus import Corpus
from raydr.data.examples import Examples, Ragged
from raydr.data.opened import offsets_of

IntArray = NDArray[np.int64]

#: Scores held at once.
_BLOCK_SCORES = 4_000_000


def redraw_candidates(encoder: LiveEncoder, examples: Examples, corpus: Corpus, depth: int) -> Examples:
    """The same examples with the ``depth`` best scored passages as candidates, best first.

    A query's are of the partitions that its random negatives come from. What must not be a negative of it is left out.
    Scores are logits: similarity times the model's scale.

    Args:
        encoder: the model as it is now.
        examples: queries and positives.
        corpus: all passages that a query may have are scored.
        depth: candidates of each query.
    """
    rows: list[IntArray] = [np.zeros(0, np.int64)] * len(examples)
    scores: list[NDArray[np.float32]] = [np.zeros(0, np.float32)] * len(examples)
    positive_scores = np.full(len(examples), np.nan, dtype=np.float32)
    partition_Q = np.array(examples.partitions)
    for partition, pool in examples.pools.items():
        mine, pool_P = np.flatnonzero(partition_Q == partition), pool.rows(np.arange(len(pool)))
        hashes_P = corpus.content_hashes(pool_P).view(np.int64)
        for at, scores_P in _scored(encoder, examples, corpus, mine, pool_P):
            own = np.isin(pool_P, examples.positives[at])
            if own.any():
                positive_scores[at] = scores_P[own].max()
            kept = np.flatnonzero(~np.isin(hashes_P, examples.forbidden[at]))
            best = kept[np.argsort(-scores_P[kept], kind="stable")[:depth]]
            rows[at], scores[at] = pool_P[best], scores_P[best]
    offsets = offsets_of([len(one) for one in rows])
    flat = np.concatenate(rows)
    return replace(
        examples,
        negatives=Ragged(flat, offsets),
        scores=Ragged(np.concatenate(scores), offsets),
        weights=Ragged(np.ones(len(flat), dtype=np.float32), offsets),
        positive_scores=positive_scores,
    )


def _scored(
    encoder: LiveEncoder, examples: Examples, corpus: Corpus, queries: IntArray, pool_P: IntArray
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Some queries with their scores of the passages of a pool."""
    if not len(queries):
        return
    passage_PD = torch.from_numpy(encoder.encode_rows(corpus, pool_P))
    query_QD = torch.from_numpy(encoder.encode("query", None, [examples.texts[at] for at in queries]))
    step = max(1, _BLOCK_SCORES // len(pool_P))
    for start in range(0, len(queries), step):
        with torch.no_grad():
            scores_BP = encoder.model.config.logits_QP(query_QD[start : start + step], passage_PD).numpy()
        yield from zip(queries[start : start + step].tolist(), scores_BP, strict=True)
