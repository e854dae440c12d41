"""Interactive search: texts in, passages out, in one process and without Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydr.data.corpus import Corpus
from raydr.errors import ConfigError, FingerprintError
from raydr.indexing.config import SearchConfig
from raydr.indexing.search import ShardSearcher
from raydr.indexing.shards import IndexShards
from raydr.models.dual_encoder import load_tokenizer
from raydr.models.encode_config import TOKEN_BUDGET
from raydr.models.inference import InferenceEncoder
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder

#: Query texts to vectors, shape (N, dim).
EncodeQueries = Callable[[list[str]], NDArray[np.float16]]


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
        num_threads: Threads of FAISS; all CPUs if None.

    Raises:
        FingerprintError: the index was not made from this corpus.
    """

    def __init__(
        self,
        index: IndexShards,
        corpus: Corpus,
        encode: EncodeQueries,
        config: SearchConfig | None = None,
        num_threads: int | None = None,
    ) -> None:
        if index.corpus_fingerprint != corpus.fingerprint:
            raise FingerprintError(
                f"the index at {index.artifact.folder} was made from corpus {index.corpus_fingerprint}, the corpus at "
                f"{corpus.artifact.folder} is {corpus.fingerprint}: build the index again, or use its own corpus"
            )
        self._index = index
        self._corpus = corpus
        self._encode = encode
        self._config = config or SearchConfig()
        threads = num_threads or os.cpu_count() or 1
        device = "cuda" if self._config.device == "cuda" else "cpu"
        self._shards = ShardSearcher(index, range(index.num_shards), self._config, threads, device)

    @classmethod
    def open(
        cls,
        index: str | Folder,
        corpus: str | Folder,
        model: str | Folder,
        config: SearchConfig | None = None,
        num_threads: int | None = None,
    ) -> Searcher:
        """Open the three artefacts; queries are encoded on the CPU in float32.

        Raises:
            FingerprintError: the index was not made with this model, or not from this corpus.
        """
        opened = IndexShards.open(index)
        saved = Artifact.open(model, "model")
        if saved.fingerprint != opened.model_fingerprint:
            raise FingerprintError(
                f"the passages of the index at {opened.artifact.folder} were encoded by model "
                f"{opened.model_fingerprint}, the model at {saved.folder} is {saved.fingerprint}: use the index's own "
                "model, or encode and index the passages again"
            )
        return cls(opened, Corpus.open(corpus), query_encoder(saved, num_threads), config, num_threads)

    def search(self, texts: Sequence[str], top_k: int | None = None) -> list[list[Hit]]:
        """The best passages for each text, best first.

        Args:
            top_k: Passages a text; ``top_k`` of the config if None.

        Raises:
            ConfigError: a text is empty.
        """
        empty = [at for at, text in enumerate(texts) if not text.strip()]
        if empty:
            raise ConfigError(f"query {empty[0] + 1} of {len(texts)} is empty: give some text to search for")
        if not texts:
            return []
        found = self._shards.search(self._encode(list(texts)), top_k or self._config.top_k)
        return [self._hits(rows[rows >= 0], scores) for rows, scores in zip(found.rows, found.scores, strict=True)]

    def _hits(self, rows: NDArray[np.int64], scores: NDArray[np.float32]) -> list[Hit]:
        ids = self._index.passage_ids(rows).to_pylist()
        texts = self._corpus.texts(rows)
        return [
            Hit(at + 1, passage_id, title, text, float(scores[at]))
            for at, (passage_id, title, text) in enumerate(zip(ids, texts.titles, texts.texts, strict=True))
        ]


def query_encoder(model: Artifact, num_threads: int | None = None) -> EncodeQueries:
    """The query side of a saved model as a function from texts to vectors, on the CPU in float32."""
    path = model.folder.localize_all()
    tokenize = load_tokenizer(path, "query")
    encoder = InferenceEncoder(
        path, "query", "float32", "cpu", token_budget=TOKEN_BUDGET["cpu"], num_threads=num_threads
    )
    return lambda texts: encoder.encode(tokenize(None, texts))
