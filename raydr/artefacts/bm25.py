"""BM25 as a first-stage baseline: index a corpus, search the queries of a split.

Artefact ``bm25``::

    shard-000/data.csc.index.npy ...    the files of bm25s, memory-mapped by every searcher

Tasks cut parts of the corpus into terms. A task per shard counts the passages that have a term; a task per range of
terms adds up these counts over all shards. Then a task indexes each shard. No task holds more than a shard, or a range
of terms.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.artefacts import Context, Node, artefact
from raydr.artefacts.dataset import declare_corpus, declare_data
from raydr.artefacts.run import part_name, rank_rows, without_own_ids
from raydr.console import counted, say
from raydr.data import Corpus, Dataset
from raydr.data.corpus import hash_strings, range_of
from raydr.data.parts import Scope, offsets_of, partition_of, within
from raydr.data.rows import join_passage
from raydr.data.tables import read_arrow
from raydr.distributed.parts import RowRange, make_parts, row_ranges, scratch_parts, total_counts, write_table
from raydr.distributed.pool import Needs, Pool
from raydr.errors import DataError
from raydr.indexing.build import plan_shards
from raydr.negatives.bm25 import INDEX_FILES, BM25Index, CorpusStatistics, Hits, build_shard, merge_hits
from raydr.negatives.config import BM25Config
from raydr.negatives.terms import FREQUENCIES, Analyzer, TermCounts, add_up
from raydr.store import Artifact, Building, Folder, Part
from raydr.store.building import write_and_record
from raydr.store.folder import side_by_side

#: Queries of a task and of a part of the run; fixed, so that parts do not depend on the cluster.
QUERIES_PER_PART = 2000

#: Maximum of passages of a shard; no score depends on it, and any machine can index and search such a shard.
SHARD_ROWS = 2_000_000
#: Memory that indexing takes: bytes per byte of terms (a term of a passage has 8), and constant bytes.
_MEMORY_FACTOR, _MEMORY_BASE = 5, 2**28
#: Terms that a task adds up, about; a term counts once for each part of the corpus that has it.
_RANGE_TERMS = 20_000_000
#: A single row: the terms of a part of the corpus, see :class:`raydr.negatives.terms.TermCounts`.
_TERMS = pa.schema(
    [
        ("vocabulary", pa.list_(pa.string())),
        ("terms", pa.large_list(pa.int32())),
        ("counts", pa.large_list(pa.int32())),
        ("sizes", pa.list_(pa.int32())),
    ]
)
#: A row per query: its best passages in a shard.
_HITS = pa.schema([("rows", pa.large_list(pa.int64())), ("scores", pa.large_list(pa.float32()))])


def bm25(run: Context) -> Node:
    """Return the node of the BM25 index."""
    return build_bm25.node("bm25", corpus=declare_corpus(run), settings=run.config.bm25)


def search(run: Context, split: str, scope: Scope | None = None) -> Node:
    """Return the node of the BM25 run on a split; ``scope`` as in :func:`raydr.artefacts.search.of_model`."""
    system, scope = f"bm25@{scope}" if scope else "bm25", scope or run.config.scope(split)
    return search_bm25.node(
        f"search-{system}-{split}",
        **declare_data(run),
        bm25=bm25(run),
        split=split,
        top_k=run.config.search.top_k,
        scope=scope,
        skip_own_id=run.config.data.skip_own_id,
    )


@artefact("bm25", version=4, rows=lambda of: of.corpus.rows("passages"))
def build_bm25(
    making: Building, pool: Pool, corpus: Artifact, *, settings: BM25Config, shard_rows: int = SHARD_ROWS
) -> dict[str, Any]:
    """Index a corpus for BM25.

    Args:
        making: index to make.
        pool: pool that cuts, counts and indexes terms.
        corpus: passages.
        settings: analyzer and weights.
        shard_rows: maximum of passages of a shard; a larger part is a shard by itself.

    Raises:
        DataError: no passage has a term.
    """
    passages = Corpus(corpus)
    shards = plan_shards(passages.passages.starts, shard_rows)
    terms, counted_terms = scratch_parts(making, "terms"), scratch_parts(making, "frequencies")
    calls = {_part(at): (passages, at, settings) for at in range(len(passages.part_names))}
    make_parts(terms, pool, _count_part, calls, "bm25: cut into terms")
    num_tokens = total_counts(terms, calls)["tokens"]
    if not num_tokens:
        raise DataError(
            f"BM25 found no term in {len(passages):,} passages; expected a term that is not a stop word. "
            "Look at the corpus with raydr inspect."
        )
    parts_of = [tuple(map(_part, range(plan.first_part, plan.end_part))) for plan in shards]
    num_ranges = 1 << (total_counts(terms, calls)["terms"] // _RANGE_TERMS).bit_length()
    of_shards = {f"shard-{plan.shard:03d}.arrow": (terms.folder, parts_of[plan.shard], num_ranges) for plan in shards}
    make_parts(counted_terms, pool, _count_shard, of_shards, "bm25: count terms")
    ranges = {f"all-{number:03d}.arrow": (sorted(of_shards), number) for number in range(num_ranges)}
    make_parts(counted_terms, pool, _add_range, ranges, "bm25: add up terms")
    memory = shard_memory(max(sum(terms.done[name].bytes for name in parts) for parts in parts_of))
    say(
        f"bm25: indexing {len(passages):,} passages in {counted(len(shards), 'shard')}, each in up to "
        f"{memory / 2**30:,.1f} GiB of memory"
    )
    statistics = len(passages), num_tokens, counted_terms.folder, sorted(ranges)
    built = {_marker(plan.shard): (terms.folder, parts_of[plan.shard], statistics, settings) for plan in shards}
    make_parts(making, pool, _build_shard, built, "bm25: index", Needs(memory=memory))
    return {
        "num_passages": len(passages),
        "num_terms": sum(counted_terms.done[name].rows for name in ranges),
        "starts": [int(passages.passages.starts[plan.first_part]) for plan in shards],
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

    A task searches a shard for some queries; another merges the results of all shards. ``skip_own_id`` leaves out
    passages with the query's id. A query without a term of the corpus has no rows; evaluation scores it 0.

    Raises:
        DataError: the data set has no such split.
    """
    Dataset(dataset).require_split(split)
    sizes = dataset.sizes(f"queries/{split}")
    of_split = set(map(partition_of, sizes))

    def searched(rows: RowRange) -> frozenset[str] | None:
        return within(scope, partition_of(rows.part), of_split)

    scratch, passages = scratch_parts(making, "hits"), Corpus(corpus)
    shards = range(len(bm25.info["starts"]))
    ranges = dict(enumerate(row_ranges(sizes, QUERIES_PER_PART)))
    depth = top_k + skip_own_id
    # Ordered by shard, so that a process opens each shard once.
    calls = {
        _hits_name(number, shard): (dataset, passages, bm25, shard, depth, rows, searched(rows))
        for shard in shards
        for number, rows in ranges.items()
        if part_name(number) not in making.done
    }
    make_parts(scratch, pool, _search_part, calls, "bm25: search")
    merged = {
        part_name(number): (scratch.folder, number, len(shards), dataset, passages, depth, rows, skip_own_id)
        for number, rows in ranges.items()
    }
    make_parts(making, pool, _merge_part, merged, "bm25: merge")
    return {"system": "bm25", "split": split, "top_k": top_k, "num_queries": sum(sizes.values())}


def shard_memory(term_bytes: int) -> int:
    """Return the memory in bytes that indexing a shard takes, from the bytes of its terms."""
    return _MEMORY_BASE + _MEMORY_FACTOR * term_bytes


def _part(at: int) -> str:
    return f"part-{at:05d}.arrow"


def _marker(shard: int) -> str:
    """Return the name of the file of a shard that is written last."""
    return f"shard-{shard:03d}/{INDEX_FILES[-1]}"


def _hits_name(number: int, shard: int) -> str:
    return f"shard-{shard:03d}/part-{number:05d}.arrow"


def _count_part(folder: Folder, name: str, corpus: Corpus, part: int, settings: BM25Config) -> Mapping[str, Part]:
    passages = corpus.passages.read(part)
    texts = map(join_passage, passages["title"].to_pylist(), passages["text"].to_pylist())
    terms = Analyzer(settings).count(texts)
    table = pa.table([[terms.vocabulary], [terms.terms], [terms.counts], [terms.sizes]], schema=_TERMS)
    counts = {"tokens": terms.num_tokens, "terms": len(terms.vocabulary)}
    return {name: write_table(folder, name, table, counts)}


def _terms(folder: Folder, name: str) -> TermCounts:
    table = read_arrow(folder.localize(name))
    vocabulary, terms, counts, sizes = (column.chunk(0)[0].values for column in table.columns)
    return TermCounts(vocabulary, terms.to_numpy(), counts.to_numpy(), sizes.to_numpy())


def _count_shard(folder: Folder, name: str, terms: Folder, parts: Sequence[str], num_ranges: int) -> Mapping[str, Part]:
    """Count the passages of a shard that have each term, and assign the term to a range."""
    total = add_up([_terms(terms, part).frequencies() for part in parts])
    of_range = range_of(hash_strings(total["term"]), num_ranges)
    return {name: write_table(folder, name, total.append_column("range", pa.array(of_range)))}


def _add_range(folder: Folder, name: str, shards: Sequence[str], number: int) -> Mapping[str, Part]:
    tables = [read_arrow(folder.localize(shard)) for shard in shards]
    in_range = [table.filter(pc.equal(table["range"], number)).select(FREQUENCIES.names) for table in tables]
    return {name: write_table(folder, name, add_up(in_range))}


def _build_shard(
    folder: Folder,
    name: str,
    terms: Folder,
    parts: Sequence[str],
    of_corpus: tuple[int, int, Folder, list[str]],
    settings: BM25Config,
) -> Mapping[str, Part]:
    """Index the parts of a shard, and publish the files."""
    num_passages, num_tokens, frequencies, ranges = of_corpus
    tables = [read_arrow(frequencies.localize(name)) for name in ranges]
    statistics = CorpusStatistics(num_passages, num_tokens, tables)
    shard = name.partition("/")[0]
    with tempfile.TemporaryDirectory(prefix="raydr-bm25-") as scratch:
        build_shard([partial(_terms, terms, part) for part in parts], statistics, settings, scratch)
        return {
            f"{shard}/{file}": write_and_record(folder, f"{shard}/{file}", 0, partial(shutil.move, f"{scratch}/{file}"))
            for file in INDEX_FILES
        }


@lru_cache(maxsize=1)
def open_bm25(folder: Folder, fingerprint: str, shard: int | None = None) -> BM25Index:
    """Open a shard, or all shards; later calls in this process reuse it."""
    artifact = Artifact.open(folder, "bm25")
    starts = dict(enumerate(artifact.info["starts"]))
    wanted = starts if shard is None else {shard: starts[shard]}
    paths = [{file: artifact.local(f"shard-{at:03d}/{file}") for file in INDEX_FILES} for at in wanted]
    return BM25Index(paths, list(wanted.values()), BM25Config.model_validate(artifact.info["settings"]))


def _search_part(
    folder: Folder,
    name: str,
    dataset: Artifact,
    corpus: Corpus,
    bm25: Artifact,
    shard: int,
    depth: int,
    rows: RowRange,
    partitions: frozenset[str] | None,
) -> Mapping[str, Part]:
    queries = rows.of(read_arrow(dataset.local(rows.part)))
    pool = corpus.pool(partitions)
    among = None if partitions is None else pool.rows(np.arange(len(pool)))
    hits = open_bm25(bm25.folder, bm25.fingerprint, shard).search(queries["text"].to_pylist(), depth, among)
    offsets = pa.array(offsets_of(len(of_query.rows) for of_query in hits))
    columns = [
        pa.LargeListArray.from_arrays(offsets, pa.array(np.concatenate(values)))
        for values in ([of_query.rows for of_query in hits], [of_query.scores for of_query in hits])
    ]
    return {name: write_table(folder, name, pa.table(columns, schema=_HITS))}


def _read_hits(scratch: Folder, number: int, shard: int) -> list[Hits]:
    table = read_arrow(scratch.localize(_hits_name(number, shard)))
    rows, scores = (column.combine_chunks() for column in table.columns)
    bounds = rows.offsets.to_numpy()
    rows, scores = rows.values.to_numpy(), scores.values.to_numpy()
    return [Hits(rows[start:end], scores[start:end]) for start, end in itertools.pairwise(bounds)]


def _merge_part(
    folder: Folder,
    name: str,
    scratch: Folder,
    number: int,
    num_shards: int,
    dataset: Artifact,
    corpus: Corpus,
    depth: int,
    rows: RowRange,
    skip_own_id: bool,
) -> Mapping[str, Part]:
    hits = merge_hits(side_by_side(partial(_read_hits, scratch, number), range(num_shards)), depth)
    query_ids = np.asarray(rows.of(read_arrow(dataset.local(rows.part)))["query_id"].to_pylist(), dtype=object)
    ranked = rank_rows(
        pa.array(np.repeat(query_ids, [len(hit.rows) for hit in hits]), type=pa.string()),
        pa.array(corpus.ids(np.concatenate([hit.rows for hit in hits])), type=pa.string()),
        pa.array(np.concatenate([hit.scores for hit in hits])),
    )
    return {name: write_table(folder, name, without_own_ids(ranked, depth - 1) if skip_own_id else ranked)}
