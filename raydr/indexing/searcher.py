"""Interactive search of texts by vectors, BM25, a fusion or a reranker, in one process without Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from raydr.data.corpus import Corpus, Texts
from raydr.data.embeddings import Encodings
from raydr.data.parts import check_partition
from raydr.errors import ConfigError, FingerprintError
from raydr.evaluation.config import FuseConfig
from raydr.evaluation.fusion import Evidence, Ranked
from raydr.indexing.config import SearchConfig
from raydr.indexing.search import ShardSearcher
from raydr.indexing.shards import IndexShards
from raydr.models.dual_encoder import load_tokenizer
from raydr.models.encode_config import TOKEN_BUDGET
from raydr.models.inference import InferenceEncoder
from raydr.models.pair_scoring import PairScorer
from raydr.negatives.bm25 import BM25Index
from raydr.store.artifact import Artifact

#: Function from query texts to vectors.
EncodeQueries = Callable[[list[str]], Encodings]


@dataclass(frozen=True)
class Hit:
    """A passage in the result of a query."""

    rank: int
    passage_id: str
    title: str
    text: str
    #: Similarity of query and passage without the scale τ: for ``dual`` the inner product or cosine.
    score: float


class Searcher:
    """Index with its corpus and model, for repeated searches.

    This process holds all shards, memory-mapped where the index allows it.

    Args:
        encode: function from query texts to vectors.

    Raises:
        FingerprintError: the index was not made from this corpus.
    """

    def __init__(self, index: IndexShards, corpus: Corpus, encode: EncodeQueries, config: SearchConfig) -> None:
        if index.corpus_fingerprint != corpus.fingerprint:
            raise FingerprintError(
                f"the index at {index.artifact.folder} was made from corpus {index.corpus_fingerprint}, but the corpus "
                f"at {corpus.artifact.folder} is {corpus.fingerprint}: build the index again, or use its own corpus"
            )
        self._index = index
        self._corpus = corpus
        self._encode = encode
        self._top_k = config.top_k
        device = "cuda" if config.device == "cuda" else "cpu"
        self._shards = ShardSearcher(index, range(index.num_shards), config, os.cpu_count() or 1, device)

    @classmethod
    def open(cls, index: Artifact, corpus: Artifact, model: Artifact, config: SearchConfig) -> Searcher:
        """Open an index with its model as the query encoder, on the CPU in float32.

        Raises:
            FingerprintError: the index belongs to another model or corpus.
            ArtifactError: a file was changed after it was written.
        """
        opened = IndexShards(index)
        if model.fingerprint != opened.model_fingerprint:
            raise FingerprintError(
                f"the passages of the index at {index.folder} were encoded by model {opened.model_fingerprint}, but "
                f"the model at {model.folder} is {model.fingerprint}: use the index's own model, or encode and index "
                "the passages again"
            )
        path = model.local_folder()
        tokenize = load_tokenizer(path, "query")
        encoder = InferenceEncoder(path, "query", "float32", "cpu", token_budget=TOKEN_BUDGET["cpu"])
        return cls(opened, Corpus(corpus), lambda texts: encoder.encode(tokenize(None, texts)), config)

    def search(self, texts: Sequence[str], top_k: int | None = None, partition: str = "") -> list[list[Hit]]:
        """Return the best passages for each text, best first.

        Args:
            top_k: passages for each text; None: ``top_k`` of the config.
            partition: partition to search; empty: all.

        Raises:
            ConfigError: a text is empty, or the partition is unknown.
        """
        check_partition(partition, self._index.partitions, f"the index at {self._index.artifact.folder}")
        empty = [at for at, text in enumerate(texts) if not text.strip()]
        if empty:
            raise ConfigError(f"query {empty[0] + 1} of {len(texts)} is empty: pass a query")
        if not texts:
            return []
        top = self._shards.search(self._encode(list(texts)), top_k or self._top_k, [partition] if partition else None)
        return [self._hits(rows[rows >= 0], scores) for rows, scores in zip(top.rows, top.scores, strict=True)]

    def _hits(self, rows: NDArray[np.int64], scores: NDArray[np.float32]) -> list[Hit]:
        ids = self._index.passage_ids(rows).to_pylist()
        texts = self._corpus.texts(rows)
        return [
            Hit(at + 1, passage_id, title, text, float(scores[at]))
            for at, (passage_id, title, text) in enumerate(zip(ids, texts.titles, texts.texts, strict=True))
        ]


def fuse_hits(lists: Sequence[Sequence[Hit]], weights: Sequence[float], settings: FuseConfig, top_k: int) -> list[Hit]:
    """Return the hits of a fused run for a text, best first.

    Args:
        lists: hits of each system, best first.
        weights: weight of each system.
        settings: settings of the fusion.
        top_k: number of passages.
    """
    rankings = [Ranked([hit.passage_id for hit in hits], np.array([hit.score for hit in hits])) for hits in lists]
    evidence = Evidence.of(rankings, settings.by, settings.rank_offset)
    passage_ids, scores = evidence.best(np.asarray(weights, dtype=np.float64), top_k)
    by_id = {hit.passage_id: hit for hits in lists for hit in hits}
    best = enumerate(zip(passage_ids, scores.tolist(), strict=True), start=1)
    return [replace(by_id[passage_id], rank=rank, score=score) for rank, (passage_id, score) in best]


def bm25_hits(index: BM25Index, corpus: Corpus, text: str, top_k: int, partition: str = "") -> list[Hit]:
    """Return BM25's hits for a text; equal scores by descending passage id, as in runs.

    Raises:
        ConfigError: the partition is unknown.
    """
    check_partition(partition, corpus.part_partitions, f"the corpus at {corpus.artifact.folder}")
    pool = corpus.pool([partition]) if partition else None
    [ranked] = index.search([text], top_k, None if pool is None else pool.rows(np.arange(len(pool))))
    texts = corpus.texts(ranked.rows)
    columns = (corpus.ids(ranked.rows), texts.titles, texts.texts, ranked.scores.tolist())
    hits = [Hit(0, *values) for values in zip(*columns, strict=True)]
    hits.sort(key=lambda hit: (hit.score, hit.passage_id.encode()), reverse=True)
    return [replace(hit, rank=rank) for rank, hit in enumerate(hits, start=1)]


def rerank_hits(text: str, hits: Sequence[Hit], scorer: PairScorer) -> list[Hit]:
    """Rerank hits by the model's scores, best first; equal scores by descending passage id, as in runs.

    Args:
        text: text of the query.
        hits: hits of the query.
        scorer: scorer of the model.
    """
    passages = Texts([hit.title for hit in hits], [hit.text for hit in hits])
    each_P = np.arange(len(hits), dtype=np.int64)
    scores_P = scorer.score([text], passages, np.zeros_like(each_P), each_P)
    scored = [replace(hit, score=float(score)) for hit, score in zip(hits, scores_P, strict=True)]
    scored.sort(key=lambda hit: (hit.score, hit.passage_id.encode()), reverse=True)
    return [replace(hit, rank=rank) for rank, hit in enumerate(scored, start=1)]
