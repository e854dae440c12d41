"""Search of index shards; equal scores have a fixed order, so that sharding changes nothing."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydr.data.embeddings import Encodings, VectorSets
from raydr.data.tables import RUNS
from raydr.indexing.config import SearchConfig
from raydr.indexing.faiss_backend import EXACT, FaissError, configure_search, faiss_threads, has_cuda, load_faiss
from raydr.indexing.shards import IndexShards

#: Passages that share the score at the cut and are compared by row, at most.
TIE_LIMIT = 1024
#: Smallest number of queries for which a CPU thread searches alone.
QUERIES_PER_THREAD = 128


@dataclass(frozen=True)
class TopRows:
    """The best rows of queries, best first.

    Rows are ordered by descending score, then by row, so that the order is unique. Unfilled places have row −1 and
    score −inf.
    """

    #: Similarities, shape (queries, top_k).
    scores: NDArray[np.float32]
    #: Row of each passage in the corpus, shape (queries, top_k).
    rows: NDArray[np.int64]

    @property
    def top_k(self) -> int:
        return int(self.rows.shape[1])


def best(scores: NDArray[np.float32], rows: NDArray[np.int64], top_k: int) -> TopRows:
    """Return the ``top_k`` best candidates of each query, from candidates in any order.

    >>> top = best(np.array([[1, 3, 3]], dtype=np.float32), np.array([[5, 9, 2]]), top_k=2)
    >>> top.rows.tolist(), top.scores.tolist()
    ([[2, 9]], [[3.0, 3.0]])
    """
    scores = np.where(rows < 0, np.float32(-np.inf), scores)
    # Unfilled places follow all passages of the same score.
    order = np.lexsort((np.where(rows < 0, np.iinfo(np.int64).max, rows), -scores), axis=-1)[:, :top_k]
    return TopRows(np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1))


def merge(parts: Sequence[TopRows], top_k: int) -> TopRows:
    """Merge the ``top_k`` best of all shards.

    Each shard must contribute its own ``top_k`` best (or all it has); the result then equals a search of an unsharded
    index.

    Args:
        parts: results of each shard for the same queries, with corpus rows.
    """
    if len(parts) == 1 and parts[0].top_k == top_k:
        return parts[0]
    return best(
        np.concatenate([part.scores for part in parts], axis=1),
        np.concatenate([part.rows for part in parts], axis=1),
        top_k,
    )


def rank_top_rows(query_ids: pa.Array, passage_ids: pa.Array, top: TopRows) -> pa.Table:
    """Return the top rows as a table of the runs schema, without unfilled places.

    Equal scores get trec_eval's order (passage id descending, as bytes). Other rows are already in order, which makes
    this much faster than :func:`raydr.artefacts.run.rank_rows`, with the same result.

    Args:
        query_ids: id of each query of ``top``.
        passage_ids: ids of the filled places, query by query.
    """
    filled = top.rows >= 0
    query, place = np.nonzero(filled)
    scores = top.scores[filled]
    same = (query[1:] == query[:-1]) & (scores[1:] == scores[:-1])
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    if len(tied):
        table = pa.table({"query": query[tied], "score": scores[tied], "passage_id": passage_ids.take(pa.array(tied))})
        keys = [("query", "ascending"), ("score", "descending"), ("passage_id", "descending")]
        order = np.arange(len(scores))
        order[tied] = tied[pc.sort_indices(table, sort_keys=keys).to_numpy()]
        passage_ids = passage_ids.take(pa.array(order))
    # Filled places of a query come first, so the place is the rank.
    ranks = pa.array(place + 1, type=pa.int32())
    return pa.Table.from_arrays([query_ids.take(pa.array(query)), passage_ids, ranks, pa.array(scores)], schema=RUNS)


def search_index(index: Any, queries: NDArray[np.float32], top_k: int) -> TopRows:
    """Return the ``top_k`` best rows of a FAISS index, by descending score, then by row.

    Of passages that share the score at the cut, such as copies, FAISS keeps arbitrary ones. A search for ``top_k`` + 1
    detects this; only then more are fetched, up to :data:`TIE_LIMIT`.

    Args:
        queries: shape (N, dim), or (N, M, dim) padded with zeros for queries of several vectors.
    """
    num_rows = int(index.ntotal)
    if num_rows == 0:
        return _nothing(len(queries), top_k)
    width = min(top_k + 1, num_rows)
    scores, rows = index.search(queries, width)
    top = _in_order(scores, rows, top_k)
    most = min(top_k + TIE_LIMIT, num_rows)
    undecided = _undecided(scores, rows, top_k)
    while len(undecided) and width < most:
        width = min(2 * width, most)
        scores, rows = index.search(np.ascontiguousarray(queries[undecided]), width)
        again = best(scores, rows, top_k)
        top.scores[undecided], top.rows[undecided] = again.scores, again.rows
        undecided = undecided[_undecided(scores, rows, top_k)]
    return _padded(top, top_k)


def _in_order(scores: NDArray[np.float32], rows: NDArray[np.int64], top_k: int) -> TopRows:
    """Return the result of :func:`best`, sorting only equal scores, since FAISS returns the best first."""
    top = TopRows(scores[:, :top_k].copy(), rows[:, :top_k].copy())
    undecided = np.flatnonzero((scores[:, 1:] == scores[:, :-1]).any(axis=1) | (rows[:, -1] < 0))
    if len(undecided):
        decided = best(scores[undecided], rows[undecided], top_k)
        top.scores[undecided], top.rows[undecided] = decided.scores, decided.rows
    return top


def _undecided(scores: NDArray[np.float32], rows: NDArray[np.int64], top_k: int) -> NDArray[np.int64]:
    """Return the queries whose last candidate ties with the last place, so that more may follow."""
    if scores.shape[1] <= top_k:
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero((rows[:, -1] >= 0) & (scores[:, -1] == scores[:, top_k - 1]))


def _nothing(num_queries: int, top_k: int) -> TopRows:
    return TopRows(np.full((num_queries, top_k), -np.inf, np.float32), np.full((num_queries, top_k), -1))


def _padded(top: TopRows, top_k: int) -> TopRows:
    missing = ((0, 0), (0, max(top_k - top.top_k, 0)))
    scores = np.pad(top.scores, missing, constant_values=-np.inf)
    return TopRows(scores, np.pad(top.rows, missing, constant_values=-1))


class ShardSearcher:
    """Loaded shards of an index.

    Args:
        index: index artefact.
        shards: numbers of the shards.
        config: search settings.
        num_threads: threads of FAISS in this process.
        device: ``cpu`` or ``cuda``; on CUDA the shards are copied to the first visible device. If FAISS lacks CUDA, or
            the score is no inner product, PyTorch searches exact indexes.

    Raises:
        FaissError: CUDA is missing, or only FAISS with CUDA could search this index.
    """

    def __init__(
        self, index: IndexShards, shards: Sequence[int], config: SearchConfig, num_threads: int, device: str = "cpu"
    ) -> None:
        faiss = load_faiss()
        self._faiss = faiss
        self._gpu = None
        self._device = device
        self._score = index.score
        self._by_faiss_on_cpu = device == "cpu" and self._score.is_inner_product
        if device == "cuda":
            if has_cuda() and faiss.get_num_gpus() < 1:
                raise FaissError("search.device is cuda, but FAISS sees no GPU here: set search.device=cpu")
            if not has_cuda() and index.factory not in EXACT and not index.several:
                raise FaissError(
                    "search.device is cuda, but the installed FAISS lacks CUDA, and PyTorch searches only "
                    f"{', '.join(EXACT)}, not {index.factory}: pip install faiss-gpu in place of faiss-cpu, or set "
                    "search.device=cpu"
                )
            self._gpu = faiss.StandardGpuResources() if has_cuda() and self._score.is_inner_product else None
        self._num_threads = num_threads
        self._threads = ThreadPoolExecutor(num_threads, initializer=faiss.omp_set_num_threads, initargs=(1,))
        self._first_rows = [int(index.starts[shard]) for shard in shards]
        self._partitions = [index.partitions[shard] for shard in shards]
        self._indexes = self._open(index, shards, config)

    def _open(self, index: IndexShards, shards: Sequence[int], config: SearchConfig) -> list[Any]:
        if not index.several:
            return [self._prepare(index.load(shard), config) for shard in shards]
        # Only passages with several vectors need PyTorch here.
        from raydr.indexing.candidates import open_sets

        return [open_sets(index, shard, config, self._device, self._num_threads) for shard in shards]

    def _prepare(self, loaded: Any, config: SearchConfig) -> Any:
        configure_search(loaded, config.nprobe, config.ef_search, config.refine_factor)
        if self._by_faiss_on_cpu:
            return loaded
        if self._gpu is None:
            # A FAISS search does not need PyTorch, which takes seconds to import.
            from raydr.indexing.torch_search import TorchFlat

            return TorchFlat.of_index(loaded, self._score, self._device)
        return self._faiss.index_cpu_to_gpu(self._gpu, 0, loaded)

    def search(
        self,
        vectors: NDArray[np.floating[Any]] | Encodings,
        top_k: int,
        partitions: Collection[str] | None = None,
    ) -> TopRows:
        """Return the best passages of these shards for each query, as corpus rows.

        Args:
            vectors: query vectors, shape (N, dim), of any float type; or several for each query.
            top_k: passages for each query.
            partitions: partitions to search; None: all.
        """
        padded = vectors.padded() if isinstance(vectors, VectorSets) else vectors
        queries = np.ascontiguousarray(padded, dtype=np.float32)
        share = math.ceil(len(queries) / self._num_threads)
        if not self._by_faiss_on_cpu or self._num_threads == 1 or share < QUERIES_PER_THREAD:
            with faiss_threads(self._num_threads):
                return self._search(queries, top_k, partitions)
        # FAISS's threads synchronise after every block of vectors, and all wait for a thread whose core is shared.
        shares = [queries[start : start + share] for start in range(0, len(queries), share)]
        results = list(self._threads.map(lambda part: self._search(part, top_k, partitions), shares))
        return TopRows(
            np.concatenate([result.scores for result in results]), np.concatenate([result.rows for result in results])
        )

    def _search(self, queries: NDArray[np.float32], top_k: int, partitions: Collection[str] | None) -> TopRows:
        parts = [_nothing(len(queries), top_k)]
        for index, first_row, partition in zip(self._indexes, self._first_rows, self._partitions, strict=True):
            if partitions is not None and partition not in partitions:
                continue
            top = search_index(index, queries, top_k)
            parts.append(TopRows(top.scores, np.where(top.rows < 0, -1, top.rows + first_row)))
        return merge(parts[1:] or parts, top_k)
