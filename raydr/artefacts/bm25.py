"""BM25 as a first-stage baseline: index a corpus, search the queries of a split.

Artefact ``bm25``::

    index/data.csc.index.npy ...    the files of bm25s, memory-mapped by every searcher

The corpus is cut into terms part by part; the index is built by one task in the memory of one node, see
:mod:`raydr.negatives.bm25` for the sizes. For tens of millions of passages bring a run from Lucene instead:
:func:`raydr.artefacts.run.import_trec_run`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raydr.artefacts.context import Context
from raydr.artefacts.corpus import declare_corpus
from raydr.artefacts.dataset import declare_dataset
from raydr.artefacts.declaration import Node, artefact
from raydr.artefacts.run import part_name, rank_rows, without_own_ids
from raydr.console import say
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.partitions import Scope, partition_of, within
from raydr.data.schema import read_arrow, write_arrow
from raydr.distributed.parts import RowRange, make_parts, row_ranges, scratch_parts, write_table
from raydr.distributed.pool import Pool
from raydr.negatives.bm25 import INDEX_FILES, Analyzer, BM25Index, TokenizedTexts, build_index, join_passage
from raydr.negatives.config import BM25Config
from raydr.store.artifact import Artifact, Building, write_and_record
from raydr.store.folder import Folder
from raydr.store.manifest import Part

#: Queries in one part of the run, and in one task: fixed, so that the parts do not depend on the cluster.
QUERIES_PER_PART = 2000

#: Bytes that building takes for each byte of the terms, which are 4 a token, and for itself.
_MEMORY_FACTOR, _MEMORY_BASE = 8, 2**28
#: One row: the terms of one part of the corpus, see :class:`raydr.negatives.bm25.TokenizedTexts`.
_TERMS = pa.schema(
    [
        ("vocabulary", pa.list_(pa.string())),
        ("tokens", pa.large_list(pa.int32())),
        ("lengths", pa.list_(pa.int32())),
    ]
)


def bm25(run: Context) -> Node:
    """The BM25 index."""
    return build_bm25.node("bm25", corpus=declare_corpus(run), settings=run.config.bm25)


def search(run: Context, split: str, scope: Scope | None = None) -> Node:
    """What BM25 finds for the queries of a split; ``scope`` as in :func:`raydr.artefacts.search.of_model`."""
    system, scope = f"bm25@{scope}" if scope else "bm25", scope or run.config.scope(split)
    return search_bm25.node(
        f"search-{system}-{split}",
        dataset=declare_dataset(run),
        corpus=declare_corpus(run),
        bm25=bm25(run),
        split=split,
        top_k=run.config.search.top_k,
        scope=scope,
        skip_own_id=run.config.data.skip_own_id,
    )


@artefact("bm25", version=3, rows=lambda of: of.corpus.rows("passages"))
def build_bm25(making: Building, pool: Pool, corpus: Artifact, *, settings: BM25Config) -> dict[str, Any]:
    """Index a corpus for BM25: its parts are cut into terms in parallel, one task builds the index.

    Raises:
        DataError: no passage has a term.
    """
    passages = Corpus(corpus)
    names = [f"index/{file}" for file in INDEX_FILES]
    if not set(names) <= making.done.keys():
        terms = scratch_parts(making, "terms")
        calls = {f"part-{part:05d}.arrow": (passages, part, settings) for part in range(len(passages.part_names))}
        make_parts(terms, pool, _tokenize_part, calls, "bm25: cut into terms")
        memory = _MEMORY_BASE + _MEMORY_FACTOR * sum(terms.done[name].bytes for name in calls)
        say(f"bm25: indexing {len(passages):,} passages in {memory / 2**30:,.1f} GiB of memory")
        making.done.update(pool.run(_build, making.folder, terms.folder, sorted(calls), settings, memory=memory))
    return {
        "num_passages": len(passages),
        "num_terms": making.done[names[0]].counts["num_terms"],
        "settings": settings.model_dump(mode="json"),
    }


@artefact("run", rows=lambda of: of.dataset.rows(f"queries/{of.split}"))
def search_bm25(
    making: Building,
    pool: Pool,
    dataset: Artifact,
    corpus: Artifact,
    bm25: Artifact,
    *,
    split: str,
    top_k: int,
    scope: Scope = "own",
    skip_own_id: bool = False,
) -> dict[str, Any]:
    """Search every query of a split: a ``run`` with the best ``top_k`` passages of each.

    With ``skip_own_id`` without those that have the query's id.

    Queries without a term that the corpus has get no rows; evaluation counts them and scores them 0.

    Raises:
        DataError: the data set has no such split.
    """
    queries = Dataset(dataset)
    if split not in queries.splits:
        queries.queries(split)
    sizes = dataset.sizes(f"queries/{split}")
    of_split = set(map(partition_of, sizes))

    def searched(rows: RowRange) -> frozenset[str] | None:
        return within(scope, partition_of(rows.part), of_split)

    calls = {
        part_name(number): (
            dataset,
            Corpus(corpus),
            bm25.folder,
            bm25.fingerprint,
            top_k,
            rows,
            searched(rows),
            skip_own_id,
        )
        for number, rows in enumerate(row_ranges(sizes, QUERIES_PER_PART))
    }
    make_parts(making, pool, _search_part, calls, "bm25: search")
    return {"system": "bm25", "split": split, "top_k": top_k, "num_queries": sum(sizes.values())}


def _tokenize_part(folder: Folder, name: str, corpus: Corpus, part: int, settings: BM25Config) -> Mapping[str, Part]:
    passages = corpus.part(part)
    texts = (
        join_passage(title, text)
        for title, text in zip(passages["title"].to_pylist(), passages["text"].to_pylist(), strict=True)
    )
    terms = Analyzer(settings).tokenize(texts)
    table = pa.table([[terms.vocabulary], [terms.tokens], [terms.lengths]], schema=_TERMS)
    return {name: write_and_record(folder, name, len(passages), partial(write_arrow, table))}


def _terms(folder: Folder, name: str) -> TokenizedTexts:
    table = read_arrow(folder.localize(name))
    vocabulary, tokens, lengths = (column.chunk(0)[0].values for column in table.columns)
    return TokenizedTexts(vocabulary.to_pylist(), tokens.to_numpy(), lengths.to_numpy())


def _build(folder: Folder, terms: Folder, parts: list[str], settings: BM25Config) -> Mapping[str, Part]:
    """Index the parts, read one after the other, and publish the files."""
    with tempfile.TemporaryDirectory(prefix="raydr-bm25-") as scratch:
        num_terms = build_index((_terms(terms, name) for name in parts), settings, scratch)
        counts = {"num_terms": num_terms}
        return {
            f"index/{file}": write_and_record(folder, f"index/{file}", 0, partial(_move, Path(scratch) / file), counts)
            for file in INDEX_FILES
        }


def _move(made: Path, path: str) -> None:
    shutil.move(made, path)


@lru_cache(maxsize=1)
def open_bm25(folder: Folder, fingerprint: str) -> BM25Index:
    """The index that this process searches: the next part finds it open."""
    artifact = Artifact.open(folder, "bm25")
    paths = {file: artifact.local(f"index/{file}") for file in INDEX_FILES}
    return BM25Index(paths, BM25Config.model_validate(artifact.info["settings"]))


def _search_part(
    folder: Folder,
    name: str,
    dataset: Artifact,
    corpus: Corpus,
    bm25: Folder,
    fingerprint: str,
    top_k: int,
    rows: RowRange,
    partitions: frozenset[str] | None,
    skip_own_id: bool,
) -> Mapping[str, Part]:
    queries = rows.of(read_arrow(dataset.local(rows.part)))
    pool = corpus.pool(partitions)
    among = None if partitions is None else pool.rows(np.arange(len(pool)))
    hits = open_bm25(bm25, fingerprint).search(queries["text"].to_pylist(), top_k + skip_own_id, among)
    query_ids = np.asarray(queries["query_id"].to_pylist(), dtype=object)
    ranked = rank_rows(
        pa.array(np.repeat(query_ids, [len(hit.rows) for hit in hits]), type=pa.string()),
        pa.array(corpus.ids(np.concatenate([hit.rows for hit in hits])), type=pa.string()),
        pa.array(np.concatenate([hit.scores for hit in hits])),
    )
    return {name: write_table(folder, name, without_own_ids(ranked, top_k) if skip_own_id else ranked)}
