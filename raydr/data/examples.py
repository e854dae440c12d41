"""Training examples: each query with its positives, its candidate negatives and its forbidden passages.

Examples hold row numbers and scores, a few hundred bytes a query and 16 a candidate; batches read texts from the
memory-mapped corpus. Training processes of a node join the tables once, and map the result.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.parts import RowPool, Scope, offsets_of, within
from raydr.data.tables import RANDOM_MINER, passages_by_query, read_arrow, relevant, write_arrow
from raydr.errors import DataError
from raydr.store import Artifact
from raydr.store.filesystems import writing
from raydr.store.identity import fingerprint_of
from raydr.store.node_cache import fetched
from raydr.version import __version__

#: Columns of candidates that are read; the table may have a hundred million rows.
_CANDIDATE_COLUMNS = ["query_id", "passage_id", "miner", "rank", "score", "positive_score", "weight"]
_PLAIN = ("query_ids", "texts", "partitions", "positive_scores", "is_noise")
_RAGGED = ("positives", "negatives", "scores", "weights", "forbidden")


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths in one flat array."""

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    def __getitem__(self, at: int) -> NDArray[Any]:
        return self.values[self.offsets[at] : self.offsets[at + 1]]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def column(self) -> pa.LargeListArray:
        return pa.LargeListArray.from_arrays(pa.array(self.offsets), pa.array(self.values))

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> Ragged:
        """View a mapped column of lists; nothing is copied."""
        [chunk] = column.chunks
        return cls(chunk.values.to_numpy(), chunk.offsets.to_numpy())


@dataclass(frozen=True)
class Examples:
    """Training queries of a split, sorted by id, so that their order does not depend on files.

    Args:
        query_ids: ids, sorted.
        texts: the query texts.
        positives: corpus rows of each query's positives: judged passages (relevance > 0) sorted by passage id, then
            relabelled passages.
        negatives: corpus rows of each query's hard negatives in the miner's order, without repeats and dropped
            candidates.
        scores: the miner's score of each candidate, NaN without a score.
        weights: weight of each candidate in the denominator.
        positive_scores: the miner's score of the annotated positive, NaN where it was not retrieved.
        forbidden: content hashes of each query's positives and dropped passages, which are never negatives.
        pools: corpus rows for random negatives, by the query's partition; "" for queries without a partition.
        partitions: partition of each query; "" if it has none.
        is_noise: whether noise was injected into the query's pair; for reports, never for training.
    """

    query_ids: list[str]
    texts: list[str]
    positives: Ragged
    negatives: Ragged
    scores: Ragged
    weights: Ragged
    positive_scores: NDArray[np.float32]
    forbidden: Ragged
    pools: dict[str, RowPool]
    partitions: list[str]
    is_noise: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.query_ids)

    def pool(self, at: int) -> RowPool:
        """Return the corpus rows for random negatives of a query."""
        return self.pools[self.partitions[at]]

    def save(self, path: Path) -> None:
        """Write the examples into a file for :meth:`map`, which makes the pools again from their partitions."""
        table = pa.table(
            {name: getattr(self, name) for name in _PLAIN} | {name: getattr(self, name).column() for name in _RAGGED}
        )
        write_arrow(table.replace_schema_metadata({"partitions": json.dumps(list(self.pools))}), str(path))

    @classmethod
    def map(cls, path: str, corpus: Corpus, scope: Scope) -> Examples:
        """Map a file of :meth:`save`; ids and texts of the queries are copied into memory."""
        table = read_arrow(path)
        columns: dict[str, Any] = {name: Ragged.of(table[name]) for name in _RAGGED}
        columns |= {name: table[name].to_pylist() for name in ("query_ids", "texts", "partitions")}
        columns |= {name: table[name].to_numpy() for name in ("positive_scores", "is_noise")}
        return cls(**columns, pools=_pools(corpus, scope, json.loads(table.schema.metadata[b"partitions"])))


def read_examples(
    data: Dataset, split: str, mined: Artifact | None, corpus: Corpus, scope: Scope, shared: bool
) -> Examples:
    """Read the examples of a split.

    Args:
        data: data set of the split.
        split: split to read.
        mined: ``negatives`` artefact that replaces the data set's own candidates.
        corpus: corpus of the passage ids.
        scope: partitions of a query's random negatives.
        shared: whether processes of this node share the examples: the first joins the tables into the node's cache,
            and all map the result.

    Raises:
        DataError: no query has a positive, or an id is not in the corpus.
    """
    if not shared:
        return load_examples(*data.training_tables(split, mined), corpus, scope)
    inputs = [artifact and artifact.manifest.digest for artifact in (data.artifact, corpus.artifact, mined)]
    key = fingerprint_of({"examples": __version__, "inputs": inputs, "split": split})

    def join(path: Path) -> None:
        with writing(str(path)):
            load_examples(*data.training_tables(split, mined), corpus, scope).save(path)

    path = fetched(f"{key}/examples.arrow", join)
    pa.default_memory_pool().release_unused()
    return Examples.map(path, corpus, scope)


def _pools(corpus: Corpus, scope: Scope, of_split: Collection[str]) -> dict[str, RowPool]:
    return {partition: corpus.pool(within(scope, partition, of_split)) for partition in sorted(of_split)}


def load_examples(
    queries: pa.Table, qrels: pa.Table, negatives: pa.Table, corpus: Corpus, scope: Scope = "own"
) -> Examples:
    """Join queries, judgments and candidate negatives.

    Args:
        queries: queries of the split.
        qrels: judgments of the split; passages of relevance 0 are not used here.
        negatives: candidates; ``drop`` rows become forbidden, ``relabel`` rows further positives.
        corpus: corpus of the passage ids.
        scope: partitions of a query's random negatives.

    Raises:
        DataError: no query has a positive, or an id is not in the corpus.
    """
    judged = relevant(qrels)
    positive_ids = passages_by_query(judged)
    relabelled_ids = passages_by_query(negatives.filter(pc.equal(negatives["action"], "relabel")))
    texts_by_id = dict(zip(queries["query_id"].to_pylist(), queries["text"].to_pylist(), strict=True))
    query_ids = sorted(texts_by_id.keys() & (positive_ids.keys() | relabelled_ids.keys()))
    if not query_ids:
        raise DataError(f"none of the {len(texts_by_id)} training queries has a positive passage (relevance > 0)")
    own = dict(zip(queries["query_id"].to_pylist(), queries["partition"].fill_null("").to_pylist(), strict=True))
    of_split = set(own.values())
    noisy = set(judged.filter(pc.is_valid(judged["noise"]))["query_id"].to_pylist())

    positives = _rows([_judged_first(positive_ids, relabelled_ids, query_id) for query_id in query_ids], corpus)
    known = pa.array(query_ids, pa.string())
    usable = pc.is_in(negatives["query_id"], known)
    may_be_drawn = pc.is_in(negatives["action"], pa.array(["keep", "down_weight"]))
    kept = negatives.select(_CANDIDATE_COLUMNS).filter(pc.and_(usable, may_be_drawn))
    dropped = negatives.filter(pc.and_(usable, pc.equal(negatives["action"], "drop")))

    forbidden = _forbidden(positives, dropped, known, corpus)
    kept_owner = _positions(kept["query_id"], known)
    order, rows = _candidates(kept, kept_owner, corpus)
    allowed = ~_is_forbidden(kept_owner[order], corpus.content_hashes(rows), forbidden)
    order, rows = order[allowed], rows[allowed]
    offsets = np.searchsorted(kept_owner[order], np.arange(len(query_ids) + 1)).astype(np.int64)
    positive_scores = np.full(len(query_ids), np.nan, dtype=np.float32)
    positive_scores[kept_owner] = kept["positive_score"].to_numpy()
    return Examples(
        query_ids=query_ids,
        texts=[texts_by_id[query_id] for query_id in query_ids],
        positives=positives,
        negatives=Ragged(rows, offsets),
        scores=Ragged(kept["score"].to_numpy().astype(np.float32)[order], offsets),
        weights=Ragged(kept["weight"].to_numpy().astype(np.float32)[order], offsets),
        positive_scores=positive_scores,
        forbidden=forbidden,
        pools=_pools(corpus, scope, of_split),
        partitions=[own[query_id] for query_id in query_ids],
        is_noise=np.array([query_id in noisy for query_id in query_ids]),
    )


def _judged_first(judged: dict[str, list[str]], relabelled: dict[str, list[str]], query_id: str) -> list[str]:
    own = set(judged.get(query_id, ()))
    return [*sorted(own), *sorted(set(relabelled.get(query_id, ())) - own)]


def _rows(ids: list[list[str]], corpus: Corpus) -> Ragged:
    return Ragged(corpus.rows_of([passage_id for row in ids for passage_id in row]), offsets_of(map(len, ids)))


def _positions(ids: pa.ChunkedArray, known: pa.Array) -> NDArray[np.int64]:
    """Return the position of each id among the known ids; a hundred million ids never become Python strings."""
    return np.asarray(pc.index_in(ids, value_set=known).to_numpy(), dtype=np.int64)


def _candidates(
    kept: pa.Table, owner: NDArray[np.int64], corpus: Corpus
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows in the table and in the corpus of all candidates, without repeats, sorted by query and rank.

    Random passages of the data set come after all others, since their ranks are of a separate list.
    """
    is_random = pc.equal(kept["miner"], RANDOM_MINER).to_numpy(zero_copy_only=False)
    order = np.lexsort((kept["rank"].to_numpy(), is_random, owner))
    rows = corpus.rows_of_column(kept["passage_id"])
    _, first = np.unique((owner * len(corpus) + rows)[order], return_index=True)
    order = order[np.sort(first)]
    return order, rows[order]


def _forbidden(positives: Ragged, dropped: pa.Table, known: pa.Array, corpus: Corpus) -> Ragged:
    owners = [np.repeat(np.arange(len(positives)), np.diff(positives.offsets))]
    rows = [positives.values]
    if dropped.num_rows:
        owners.append(_positions(dropped["query_id"], known))
        rows.append(corpus.rows_of_column(dropped["passage_id"]))
    owner = np.concatenate(owners)
    hashes = corpus.content_hashes(np.concatenate(rows).astype(np.int64)).view(np.int64)
    order = np.argsort(owner, kind="stable")
    offsets = np.searchsorted(owner[order], np.arange(len(positives) + 1)).astype(np.int64)
    return Ragged(hashes[order], offsets)


def _is_forbidden(owner: NDArray[np.int64], hashes: NDArray[np.uint64], forbidden: Ragged) -> NDArray[np.bool_]:
    forbidden_owner = np.repeat(np.arange(len(forbidden)), np.diff(forbidden.offsets))
    forbidden_hashes = np.asarray(forbidden.values, dtype=np.int64).view(np.uint64)
    return np.isin(_pair_key(owner, hashes), _pair_key(forbidden_owner, forbidden_hashes))


def _pair_key(owner: NDArray[np.int64], hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a 64-bit key for (query, passage); it wraps around on purpose."""
    return np.asarray(owner, dtype=np.int64).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ hashes
