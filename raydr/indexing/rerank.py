"""Passages that were found for a text, ordered anew by a model that reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from raydr.data.corpus import Texts
from raydr.indexing.searcher import Hit
from raydr.models.pair_scoring import PairScorer


def rerank_hits(text: str, hits: Sequence[Hit], scorer: PairScorer) -> list[Hit]:
    """The same passages by the model's scores, best first; equal scores by passage id descending, as in runs.

    Args:
        text: the query.
        hits: what was found for it.
        scorer: the model.
    """
    passages = Texts([hit.title for hit in hits], [hit.text for hit in hits])
    each_P = np.arange(len(hits), dtype=np.int64)
    scores_P = scorer.score([text], passages, np.zeros_like(each_P), each_P)
    scored = [replace(hit, score=float(score)) for hit, score in zip(hits, scores_P, strict=True)]
    scored.sort(key=lambda hit: (hit.score, hit.passage_id.encode()), reverse=True)
    return [replace(hit, rank=rank) for rank, hit in enumerate(scored, start=1)]
