"""Corpus: the passages of the reader's files, each content once.

One call a source reads and checks its rows and writes them as parts; then one call compares all ids and contents. A
source that holds passages and other tables is read once for each of the two artefacts. After a kill, the comparison
is made anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from raydr.artefacts.context import Context, of_data
from raydr.artefacts.declaration import Node, artefact
from raydr.artefacts.sources import Sources, left_out, nothing_usable, read_sources, settle
from raydr.console import counted, say
from raydr.data.config import DataConfig
from raydr.data.lookup import finish_corpus, group_parts, hash_parts
from raydr.data.readers.base import Reader
from raydr.data.staging import STAGING, Finished
from raydr.distributed.pool import Pool
from raydr.store.artifact import Building
from raydr.store.folder import Folder
from raydr.store.manifest import Part

_NOTHING: Mapping[str, Any] = MappingProxyType({})
#: Passages that one task hashes, at least. Each task costs the driver some 30 KB, so there is not one a part.
_HASH_ROWS = 200_000


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


@artefact("corpus", rows=lambda of: of.sources.num_rows(), content=content_of_corpus)
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
    groups = group_parts(parts, _HASH_ROWS)
    hashed = pool.map(_write_hashes, [(folder, at, names) for at, names in enumerate(groups)], "hash")
    # Tried again after it was lost in the middle, it would read parts that it has shortened already.
    check: Finished = pool.run(
        _finish_corpus, folder, parts, hashed, reader.passages_repeat, sources.paths, retried=False
    )
    num_bad = settle(making, records, [check], data.max_bad_rows)
    num_passages = check.counts["passages"]
    num_merged = check.counts["merged"] + sum(record.num_merged for record in records)
    merged = f", {counted(num_merged, 'copy', 'copies')} merged" if num_merged else ""
    say(f"corpus: {counted(num_passages, 'passage')}{merged}{left_out(num_bad)}")
    return {"num_passages": num_passages, "num_merged": num_merged, "num_bad": num_bad}


def _write_hashes(folder: Folder, number: int, names: Sequence[str]) -> str:
    """Keep the hashes of some parts beside them, until all are compared; returns the file's name."""
    hashes, name = hash_parts(folder, names), f"{STAGING}/hashes-{number:05d}.npz"
    with folder.publish(name) as path, open(path, "wb") as file:
        np.savez(file, ids=hashes["ids"], contents=hashes["contents"])
    return name


def _finish_corpus(
    folder: Folder, parts: Mapping[str, Part], hashed: Sequence[str], passages_repeat: bool, paths: Mapping[str, str]
) -> Finished:
    hashes = []
    for name in hashed:
        with np.load(folder.localize(name), allow_pickle=False) as arrays:
            hashes.append(dict(arrays))
    return finish_corpus(folder, parts, hashes, passages_repeat, paths)
