"""Passages that several systems found for a text, put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from raydr.data.corpus import Corpus
from raydr.data.partitions import check_partition
from raydr.evaluation.config import FuseConfig
from raydr.evaluation.fusion import Evidence, Ranked
from raydr.indexing.searcher import Hit
from raydr.negatives.bm25 import BM25Index


def fuse_hits(lists: Sequence[Sequence[Hit]], weights: Sequence[float], settings: FuseConfig, top_k: int) -> list[Hit]:
    """What a fused run would have for a text, best first.

    Args:
        lists: of each system, best first.
        weights: of each system.
        settings: how they are fused.
        top_k: passages.
    """
    found = [Ranked([hit.passage_id for hit in hits], np.array([hit.score for hit in hits])) for hits in lists]
    evidence = Evidence.of(found, settings.by, settings.rank_offset)
    passage_ids, scores = evidence.best(np.asarray(weights, dtype=np.float64), top_k)
    hits = {hit.passage_id: hit for one in lists for hit in one}
    best = enumerate(zip(passage_ids, scores.tolist(), strict=True), start=1)
    return [replace(hits[passage_id], rank=rank, score=score) for rank, (passage_id, score) in best]


def bm25_hits(index: BM25Index, corpus: Corpus, text: str, top_k: int, partition: str = "") -> list[Hit]:
    """What BM25 finds for a text; equal scores by passage id descending, as in runs.

    Raises:
        ConfigError: the corpus has no such partition.
    """
    check_partition(partition, corpus.part_partitions, f"the corpus at {corpus.artifact.folder}")
    pool = corpus.pool([partition]) if partition else None
    [found] = index.search([text], top_k, None if pool is None else pool.rows(np.arange(len(pool))))
    texts = corpus.texts(found.rows)
    columns = (corpus.ids(found.rows), texts.titles, texts.texts, found.scores.tolist())
    hits = [Hit(0, *one) for one in zip(*columns, strict=True)]
    hits.sort(key=lambda hit: (hit.score, hit.passage_id.encode()), reverse=True)
    return [replace(hit, rank=rank) for rank, hit in enumerate(hits, start=1)]
