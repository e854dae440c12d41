"""BM25: a memory-mapped index of terms, and its search.

Scores are those of Lucene's BM25. An index has shards of consecutive passages. Document frequencies and the mean length
are those of the whole corpus, so that scores do not depend on the shards. A shard is an index of bm25s
(``bm25s.BM25.load`` opens it), with passage numbers from 0. Search is a product of sparse matrices, which needs no
compilation in each process.
"""

from __future__ import annotations

import itertools
import json
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydr.data.parts import offsets_of
from raydr.negatives.config import BM25Config
from raydr.negatives.terms import Analyzer, TermCounts, load_bm25s

if TYPE_CHECKING:
    from scipy import sparse

#: The files of a saved index.
INDEX_FILES = (
    "data.csc.index.npy",
    "indices.csc.index.npy",
    "indptr.csc.index.npy",
    "params.index.json",
    "vocab.index.json",
)

#: Maximum of scores in memory at once.
_MOST_SCORES = 20_000_000


@dataclass(frozen=True)
class CorpusStatistics:
    """Statistics of the corpus that determine the weights of terms.

    Args:
        num_passages: number of passages of the corpus.
        num_tokens: number of tokens of all passages.
        frequencies: number of passages with each term, in tables of different terms.
    """

    num_passages: int
    num_tokens: int
    frequencies: Sequence[pa.Table]

    def inverse_frequencies(self, vocabulary: pa.Array) -> NDArray[np.float32]:
        """Return the inverse document frequency of each term, as in Lucene."""
        idf_V = np.zeros(len(vocabulary), dtype=np.float32)
        for table in self.frequencies:
            known = pc.index_in(table["term"], value_set=vocabulary)
            here = table.filter(pc.is_valid(known))["frequency"].to_numpy()
            idf_V[known.drop_null().to_numpy()] = [
                math.log(1 + (self.num_passages - frequency + 0.5) / (frequency + 0.5)) for frequency in here.tolist()
            ]
        return idf_V


@dataclass(frozen=True)
class Hits:
    """Row numbers and scores of a query's passages, best first, without passages of score 0."""

    rows: NDArray[np.int64]
    scores: NDArray[np.float32]


def build_shard(
    parts: Sequence[Callable[[], TermCounts]], statistics: CorpusStatistics, config: BM25Config, save_dir: str | Path
) -> None:
    """Build the index of consecutive passages, and save it.

    Args:
        parts: functions that read the parts of the passages, in row order; each is called twice, and a single part is
            in memory at a time.
        statistics: statistics of the whole corpus.
        config: weights of BM25.
        save_dir: folder for the files in :data:`INDEX_FILES`; created if missing.
    """
    from scipy import sparse

    numbers: dict[str, int] = {}
    for part in parts:
        for term in part().vocabulary.to_pylist():
            numbers.setdefault(term, len(numbers))
    vocabulary = pa.array(list(numbers), pa.string())
    idf_V = statistics.inverse_frequencies(vocabulary)
    average = statistics.num_tokens / statistics.num_passages
    weights, passages, terms = [], [], []
    num_passages = 0
    for part in parts:
        texts = part()
        mapping = np.array([numbers[term] for term in texts.vocabulary.to_pylist()], dtype=np.int32)
        passage = np.repeat(np.arange(len(texts.sizes), dtype=np.int32), texts.sizes)
        length = np.bincount(passage, weights=texts.counts, minlength=len(texts.sizes))[passage]
        # The same operations as in bm25s, so that scores are equal to the last bit.
        saturation = texts.counts / (config.k1 * ((1 - config.b) + config.b * length / average) + texts.counts)
        term = mapping[texts.terms]
        weights.append((idf_V[term] * saturation).astype(np.float32))
        passages.append(passage + np.int32(num_passages))
        terms.append(term)
        num_passages += len(texts.sizes)
    coordinates = np.concatenate(passages), np.concatenate(terms)
    matrix = sparse.coo_array((np.concatenate(weights), coordinates), shape=(num_passages, len(numbers))).tocsc()
    index = load_bm25s().BM25(k1=config.k1, b=config.b, method="lucene")
    columns = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}
    index.scores = columns | {"num_docs": num_passages}
    # Lucene's weights have no scores of terms that a passage lacks.
    index.nonoccurrence_array = None
    index.vocab_dict = numbers
    index.save(save_dir, show_progress=False)


def index_texts(texts: Iterable[str], config: BM25Config) -> BM25Index | None:
    """Index passages outside of artefacts, in a single shard; return None if they have no term.

    Args:
        texts: texts of the passages, in row order.
        config: analyzer and weights.
    """
    terms = Analyzer(config).count(texts)
    if not len(terms.vocabulary):
        return None
    statistics = CorpusStatistics(len(terms.sizes), terms.num_tokens, [terms.frequencies()])
    with tempfile.TemporaryDirectory(prefix="raydr-bm25-") as folder:
        build_shard([lambda: terms], statistics, config, folder)
        # Mapped files stay readable after their folder is removed.
        return BM25Index([{name: str(Path(folder, name)) for name in INDEX_FILES}], [0], config)


class BM25Index:
    """Memory-mapped shards of a saved index.

    Args:
        shards: local paths of the :data:`INDEX_FILES` of each shard, by name; some shards of an index suffice.
        starts: row of the first passage of each shard.
        config: settings of the index, whose analyzer also cuts queries into terms.
    """

    def __init__(self, shards: Sequence[Mapping[str, str]], starts: Sequence[int], config: BM25Config) -> None:
        analyzer = Analyzer(config)
        self._shards = [_Shard(paths, start, analyzer) for paths, start in zip(shards, starts, strict=True)]

    def search(self, queries: Sequence[str], top_k: int, among: NDArray[np.int64] | None = None) -> list[Hits]:
        """Return the best passages of each query, at most ``top_k``; none if the corpus has no term of the query.

        Passages with equal scores are ordered by row number. ``among`` restricts the search to these rows; the
        weights of terms stay those of the whole corpus.
        """
        return merge_hits([shard.search(queries, top_k, among) for shard in self._shards], top_k)


def merge_hits(shards: Sequence[Sequence[Hits]], top_k: int) -> list[Hits]:
    """Merge the results of shards for the same queries: return the ``top_k`` best passages of each query."""
    return [
        _best(
            np.concatenate([hits.rows for hits in of_query]), np.concatenate([hits.scores for hits in of_query]), top_k
        )
        for of_query in zip(*shards, strict=True)
    ]


class _Shard:
    """A shard of an index, memory-mapped."""

    def __init__(self, paths: Mapping[str, str], start: int, analyzer: Analyzer) -> None:
        from scipy import sparse

        params = json.loads(Path(paths["params.index.json"]).read_text(encoding="utf-8"))
        self.num_passages = int(params["num_docs"])
        self._vocabulary: dict[str, int] = json.loads(Path(paths["vocab.index.json"]).read_text(encoding="utf-8"))
        self._start, self._analyzer = start, analyzer
        columns = [
            np.load(paths[f"{name}.csc.index.npy"], mmap_mode="r", allow_pickle=False)
            for name in ("data", "indices", "indptr")
        ]
        #: Weight of each term in each passage, shape (terms, passages).
        self._weights = sparse.csr_array(tuple(columns), shape=(len(self._vocabulary), self.num_passages))

    def search(self, queries: Sequence[str], top_k: int, among: NDArray[np.int64] | None = None) -> list[Hits]:
        allowed = None
        if among is not None:
            allowed = np.zeros(self.num_passages, dtype=np.bool_)
            local = among - self._start
            allowed[local[(local >= 0) & (local < self.num_passages)]] = True
        at_once = max(1, _MOST_SCORES // self.num_passages)
        hits: list[Hits] = []
        for start in range(0, len(queries), at_once):
            scores_QP = self._scores(queries[start : start + at_once])
            for begin, end in itertools.pairwise(scores_QP.indptr.tolist()):
                rows, scores = scores_QP.indices[begin:end].astype(np.int64), scores_QP.data[begin:end]
                if allowed is not None:
                    kept = allowed[rows]
                    rows, scores = rows[kept], scores[kept]
                hits.append(_best(rows + self._start, scores, top_k))
        return hits

    def _scores(self, queries: Sequence[str]) -> sparse.csr_array:
        """Score the passages that have a term of a query, shape (queries, passages)."""
        from scipy import sparse

        numbers = [self._numbers(query) for query in queries]
        terms = np.array(list(itertools.chain.from_iterable(numbers)), dtype=np.int32)
        shape = (len(queries), len(self._vocabulary))
        counts = np.ones(len(terms), dtype=np.float32), terms, offsets_of(map(len, numbers))
        return sparse.csr_array(counts, shape=shape) @ self._weights

    def _numbers(self, query: str) -> list[int]:
        numbers = (self._vocabulary.get(term) for term in self._analyzer.terms(query))
        return [number for number in numbers if number is not None]


def _best(rows: NDArray[np.int64], scores: NDArray[np.float32], top_k: int) -> Hits:
    """Return the ``top_k`` passages with the highest scores; equal scores are ordered by row.

    >>> _best(np.array([7, 2, 5, 4]), np.array([1, 3, 1, 1], dtype=np.float32), 3).rows.tolist()
    [2, 4, 5]
    """
    if len(rows) > top_k:
        limit = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
        # Equal scores may keep more than top_k passages, which the sort below cuts.
        kept = scores >= limit
        rows, scores = rows[kept], scores[kept]
    order = np.lexsort((rows, -scores))[:top_k]
    return Hits(rows[order], scores[order])
