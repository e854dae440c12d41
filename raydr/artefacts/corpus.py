"""Corpus: the passages of the reader's files, each content once.

A call reads and checks the rows of a source, or of a range of its lines, and writes them as parts. Then ids and
contents are compared, see :mod:`raydr.data.lookup`. A source that holds passages and other tables is read once for
each of the two artefacts. After a kill, the comparison is made anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from raydr.artefacts.context import Context, of_data
from raydr.artefacts.declaration import Node, artefact
from raydr.artefacts.sources import Sources, left_out, nothing_usable, read_sources, settle
from raydr.console import counted, say
from raydr.data.config import DataConfig
from raydr.data.lookup import Unfinished, drop_repeats, find_repeats, hash_group, report_repeats, write_hashes
from raydr.data.readers.base import Reader
from raydr.data.staging import Finished
from raydr.distributed.pool import Pool
from raydr.store.building import Building
from raydr.store.identity import Part

_NOTHING: Mapping[str, Any] = MappingProxyType({})
#: Passages of one group, at least. Each task costs the driver some 30 KB, so there is not one a part.
_GROUP_ROWS = 200_000


@of_data
def declare_corpus(run: Context) -> Node:
    """The passages of the reader's files."""
    data = run.of_data.data
    sources, checksums = run.facts.sources(data.reader)
    return prepare_corpus.node(
        "corpus",
        reader=data.reader,
        rows_of=run.facts.content_key(data.reader),
        sources=sources,
        checksums=sources.by_role("corpus", checksums),
        data=data,
    )


def content_of_corpus(of: Any) -> dict[str, Any]:
    return {"rows_of": of.rows_of, "checksums": of.checksums, "part_rows": of.data.part_rows}


@artefact("corpus", version=2, rows=lambda of: of.sources.num_rows(), content=content_of_corpus)
def prepare_corpus(
    making: Building,
    pool: Pool,
    *,
    reader: Reader,
    rows_of: Mapping[str, Any] = _NOTHING,
    sources: Sources,
    checksums: Mapping[str, str] = _NOTHING,
    data: DataConfig,
) -> dict[str, Any]:
    """Read the passages of the sources into a ``corpus`` artefact.

    Args:
        making: the corpus.
        pool: where sources are read and passages hashed.
        reader: knows the format of the sources.
        rows_of: what decides the reader's rows besides its files.
        sources: what to read.
        checksums: of the sources, by what they hold.
        data: its ``part_rows`` and ``max_bad_rows`` are used.

    Returns:
        ``num_passages``, ``num_merged`` (copies) and ``num_bad``.

    Raises:
        DataError: a source cannot be read, more than ``data.max_bad_rows`` rows are bad, or there are no passages.
    """
    folder, records = making.folder, read_sources(making, pool, reader, sources, "corpus", data.part_rows)
    parts = {name: part for record in records for name, part in record.parts.items()}
    if not parts:
        raise nothing_usable("passage", records, reader)
    corpus = Unfinished.of(folder, parts, _GROUP_ROWS)
    check = finish_corpus(pool, corpus, parts, reader.passages_repeat, sources.paths)
    num_bad = settle(making, records, [check], data.max_bad_rows)
    num_passages = check.counts["passages"]
    num_merged = check.counts["merged"] + sum(record.num_merged for record in records)
    merged = f", {counted(num_merged, 'copy', 'copies')} merged" if num_merged else ""
    say(f"corpus: {counted(num_passages, 'passage')}{merged}{left_out(num_bad)}")
    return {"num_passages": num_passages, "num_merged": num_merged, "num_bad": num_bad}


def finish_corpus(
    pool: Pool, corpus: Unfinished, parts: Mapping[str, Part], passages_repeat: bool, paths: Mapping[str, str]
) -> Finished:
    """Drop repeated passages and write the lookup.

    Args:
        pool: where that is done.
        corpus: its sources are read.
        parts: all passage parts, by name; one at least.
        passages_repeat: whether copies are expected.
        paths: full paths of the sources by their short names, for messages.
    """
    folder = corpus.folder
    starts = pool.map(hash_group, [(folder, group, corpus.num_ranges) for group in corpus.groups], "hash")
    ranges = [
        (corpus, number, [(of_group[number], of_group[number + 1]) for of_group in starts])
        for number in range(corpus.num_ranges)
    ]
    repeats = [name for name in pool.map(find_repeats, ranges, "compare") if name]
    check: Finished = pool.run(report_repeats, corpus, repeats, passages_repeat, paths)
    finished: dict[str, Part | None] = dict(parts)
    for written in [
        *pool.map(drop_repeats, [(folder, group, repeats) for group in corpus.groups], "drop repeats"),
        *pool.map(write_hashes, [(*of_range, repeats) for of_range in ranges], "write the lookup"),
    ]:
        finished |= written
    return replace(check, parts={name: part for name, part in finished.items() if part is not None})
