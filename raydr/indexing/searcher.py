"""Interactive search: texts in, passages out, in one process and without Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydr.data.corpus import Corpus
from raydr.data.partitions import check_partition
from raydr.data.vector_sets import Encodings
from raydr.errors import ConfigError, FingerprintError
from raydr.indexing.config import SearchConfig
from raydr.indexing.search import ShardSearcher
from raydr.indexing.shards import IndexShards
from raydr.models.dual_encoder import load_tokenizer
from raydr.models.encode_config import TOKEN_BUDGET
from raydr.models.inference import InferenceEncoder
from raydr.store.artifact import Artifact

#: Query texts to their vectors.
EncodeQueries = Callable[[list[str]], Encodings]


@dataclass(frozen=True)
class Hit:
    """One passage found for a query."""

    rank: int
    passage_id: str
    title: str
    text: str
    #: Similarity of query and passage, without the scale τ: with ``dual`` their inner product, or their cosine.
    score: float


class Searcher:
    """An index, its corpus and its model, opened once and searched many times.

    All shards are held by this process (memory-mapped where the kind of index allows it).

    Args:
        encode: Makes vectors of query texts.

    Raises:
        FingerprintError: the index was not made from this corpus.
    """

    def __init__(self, index: IndexShards, corpus: Corpus, encode: EncodeQueries, config: SearchConfig) -> None:
        if index.corpus_fingerprint != corpus.fingerprint:
            raise FingerprintError(
                f"the index at {index.artifact.folder} was made from corpus {index.corpus_fingerprint}, the corpus at "
                f"{corpus.artifact.folder} is {corpus.fingerprint}: build the index again, or use its own corpus"
            )
        self._index = index
        self._corpus = corpus
        self._encode = encode
        self._top_k = config.top_k
        device = "cuda" if config.device == "cuda" else "cpu"
        self._shards = ShardSearcher(index, range(index.num_shards), config, os.cpu_count() or 1, device)

    @classmethod
    def open(cls, index: Artifact, corpus: Artifact, model: Artifact, config: SearchConfig) -> Searcher:
        """With the model as the encoder of the queries, on the CPU in float32.

        Raises:
            FingerprintError: the index was not made with this model, or not from this corpus.
            ArtifactError: a file was changed after it was written.
        """
        opened = IndexShards(index)
        if model.fingerprint != opened.model_fingerprint:
            raise FingerprintError(
                f"the passages of the index at {index.folder} were encoded by model {opened.model_fingerprint}, the "
                f"model at {model.folder} is {model.fingerprint}: use the index's own model, or encode and index the "
                "passages again"
            )
        path = model.local_folder()
        tokenize = load_tokenizer(path, "query")
        encoder = InferenceEncoder(path, "query", "float32", "cpu", token_budget=TOKEN_BUDGET["cpu"])
        return cls(opened, Corpus(corpus), lambda texts: encoder.encode(tokenize(None, texts)), config)

    def search(self, texts: Sequence[str], top_k: int | None = None, partition: str = "") -> list[list[Hit]]:
        """The best passages for each text, best first.

        Args:
            top_k: Passages a text; ``top_k`` of the config if None.
            partition: where they are looked for; everywhere if empty.

        Raises:
            ConfigError: a text is empty, or the index has no such partition.
        """
        check_partition(partition, self._index.partitions, f"the index at {self._index.artifact.folder}")
        empty = [at for at, text in enumerate(texts) if not text.strip()]
        if empty:
            raise ConfigError(f"query {empty[0] + 1} of {len(texts)} is empty: give some text to search for")
        if not texts:
            return []
        found = self._shards.search(self._encode(list(texts)), top_k or self._top_k, [partition] if partition else None)
        return [self._hits(rows[rows >= 0], scores) for rows, scores in zip(found.rows, found.scores, strict=True)]

    def _hits(self, rows: NDArray[np.int64], scores: NDArray[np.float32]) -> list[Hit]:
        ids = self._index.passage_ids(rows).to_pylist()
        texts = self._corpus.texts(rows)
        return [
            Hit(at + 1, passage_id, title, text, float(scores[at]))
            for at, (passage_id, title, text) in enumerate(zip(ids, texts.titles, texts.texts, strict=True))
        ]
