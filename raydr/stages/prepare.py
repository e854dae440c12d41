"""Raw files to a corpus and a data set.

One call a source reads and checks its rows and writes them as parts; then one call compares all passage ids and one a
split compares its tables. A source that holds passages and other tables is read once for each of the two
artefacts. After a kill, the comparisons are made anew.

Rows that cannot be used are left out and listed in ``quarantine.jsonl`` of the artefact they would have gone to, also
when there are too many of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from raydr.data.config import DataConfig
from raydr.data.corpus import Corpus
from raydr.data.lookup import CorpusCheck, Hashes, finish_corpus, group_parts, hash_parts
from raydr.data.quarantine import check_allowed
from raydr.data.readers.base import Reader
from raydr.data.schema import TableName
from raydr.data.splits import SplitCheck, SplitPlan, finish_split
from raydr.data.staging import STAGING, SourceRecord
from raydr.errors import ConfigError, DataError
from raydr.runtime.console import show_summary, show_table
from raydr.stages.pool import Pool
from raydr.stages.sources import Sources, read_sources
from raydr.store.artifact import Artifact, Building, Part
from raydr.store.folder import Folder

QUARANTINE = "quarantine.jsonl"
#: Passages that one task hashes, at least. Each task costs the driver some 30 KB, so there is not one a part.
_HASH_ROWS = 200_000


def prepare_corpus(
    making: Building, pool: Pool, *, reader: Reader, sources: Sources, data: DataConfig
) -> dict[str, Any]:
    """Read the passages of the sources into a ``corpus`` artefact.

    Args:
        making: the corpus.
        pool: where sources are read and passages hashed.
        reader: knows the format of the sources.
        sources: what to read.
        data: its ``part_rows`` and ``max_bad_rows`` are used.

    Returns:
        ``num_passages``, ``num_merged`` (copies) and ``num_bad``.

    Raises:
        DataError: a source cannot be read, more than ``data.max_bad_rows`` rows are bad, or there are no passages.
    """
    folder, records = making.folder, read_sources(making, pool, reader, sources, "corpus", data.part_rows)
    parts = {name: part for record in records for name, part in record.parts.items()}
    groups = group_parts(parts, _HASH_ROWS)
    hashed = sorted(pool.map(_write_hashes, [(folder, at, names) for at, names in enumerate(groups)], "hash"))
    # Tried again after it was lost in the middle, it would read parts that it has shortened already.
    check: CorpusCheck = pool.run(
        _finish_corpus, folder, parts, hashed, reader.passages_repeat, sources.paths, retried=False
    )
    making.done.clear()
    making.done.update(check.parts)
    num_bad = check.num_bad + sum(record.num_bad for record in records)
    examples = [row for record in records for row in record.examples] + check.examples
    check_allowed(num_bad, examples, data.max_bad_rows, _write_quarantine(folder))
    folder.remove(STAGING)
    num_merged = check.num_merged + sum(record.num_merged for record in records)
    show_summary(
        "corpus",
        {
            "passages": f"{check.num_passages:,} ({num_merged:,} copies merged)",
            "bad rows left out": _bad_rows_fact(num_bad),
            "at": str(folder),
        },
    )
    return {"num_passages": check.num_passages, "num_merged": num_merged, "num_bad": num_bad}


def prepare_dataset(
    making: Building,
    pool: Pool,
    corpus: Artifact,
    *,
    reader: Reader,
    sources: Sources,
    data: DataConfig,
    seed: int,
) -> dict[str, Any]:
    """Read queries, judgments and negatives of the sources into a ``dataset`` artefact.

    Args:
        making: the data set.
        pool: where sources are read and splits compared with the corpus.
        corpus: made from the same sources; its bad rows count as well.
        reader: knows the format of the sources.
        sources: what to read.
        data: its ``part_rows``, ``max_bad_rows`` and ``max_queries`` are used.
        seed: decides with each query's id whether it is one of ``data.max_queries``.

    Returns:
        ``splits`` (counts of each), ``num_unused_queries`` (of no split) and ``num_bad``.

    Raises:
        DataError: a source cannot be read, more than ``data.max_bad_rows`` rows are bad, or there are no queries.
        ConfigError: ``data.max_queries`` names a split that the data has not.
    """
    folder, records = making.folder, read_sources(making, pool, reader, sources, "dataset", data.part_rows)
    plans = _split_plans(reader, sources, data, seed, records)
    calls = [(plan, folder, corpus.folder) for plan in plans]
    found: dict[str, SplitCheck] = dict(pool.map(_finish_split, calls, "compare", "splits"))
    checks = [found[plan.split] for plan in plans]
    making.done.clear()
    for check in checks:
        making.done.update(check.parts)
    num_bad = sum(record.num_bad for record in records) + sum(check.num_bad for check in checks)
    examples = [row for record in records for row in record.examples]
    examples += [row for check in checks for row in check.examples]
    quarantines = [_write_quarantine(folder), corpus.folder.path(QUARANTINE) if corpus.info["num_bad"] else ""]
    total = num_bad + corpus.info["num_bad"]
    check_allowed(total, examples, data.max_bad_rows, " and ".join(filter(None, quarantines)))
    folder.remove(STAGING)
    counts = {plan.split: check.counts for plan, check in zip(plans, checks, strict=True)}
    num_unused = sum(record.num_unused for record in records)
    _show_splits(counts)
    show_summary(
        "data set",
        {"queries in no split": f"{num_unused:,}", "bad rows left out": _bad_rows_fact(num_bad), "at": str(folder)},
    )
    return {"splits": counts, "num_unused_queries": num_unused, "num_bad": num_bad}


def _write_hashes(folder: Folder, number: int, names: Sequence[str]) -> str:
    """Keep the hashes of some parts beside them, until all are compared; returns the file's name."""
    hashes, name = hash_parts(folder, names), f"{STAGING}/hashes-{number:05d}.npz"
    with folder.publish(name) as path, open(path, "wb") as file:
        np.savez(file, ids=hashes.ids, contents=hashes.contents)
    return name


def _finish_corpus(
    folder: Folder, parts: Mapping[str, Part], hashed: Sequence[str], passages_repeat: bool, paths: Mapping[str, str]
) -> CorpusCheck:
    found = []
    for name in hashed:
        with np.load(folder.localize(name), allow_pickle=False) as arrays:
            found.append(Hashes(arrays["ids"], arrays["contents"]))
    return finish_corpus(folder, parts, found, passages_repeat, paths)


def _split_plans(
    reader: Reader, sources: Sources, data: DataConfig, seed: int, records: Sequence[SourceRecord]
) -> list[SplitPlan]:
    staged: dict[str, dict[TableName, list[str]]] = {}
    for record in records:
        for name in record.parts:
            _, table, split, _ = name.split("/")
            staged.setdefault(split, {}).setdefault(cast(TableName, table), []).append(name)
    if not any("queries" in tables for tables in staged.values()):
        raise DataError("the sources hold no query that belongs to a split. Check data.reader: files and splits.")
    unknown = sorted(data.max_queries.keys() - staged.keys())
    if unknown:
        raise ConfigError(f"data.max_queries names {unknown[0]!r}; the data has the splits {', '.join(sorted(staged))}")
    return [
        SplitPlan(
            split=split,
            staged=tables,
            queries_repeat=reader.passages_repeat,
            max_queries=data.max_queries.get(split),
            seed=seed,
            part_rows=data.part_rows,
            paths=sources.paths,
        )
        for split, tables in sorted(staged.items())
    ]


def _finish_split(plan: SplitPlan, folder: Folder, corpus: Folder) -> tuple[str, SplitCheck]:
    return plan.split, finish_split(plan, folder, Corpus.open(corpus))


def _write_quarantine(folder: Folder) -> str:
    """Put the bad rows found so far into one file; returns its path, empty if there are none."""
    found = [name for name in folder.files(STAGING) if name.endswith(".jsonl")]
    if not found:
        folder.remove(QUARANTINE)
        return ""
    with folder.publish(QUARANTINE) as path, open(path, "wb") as quarantine:
        for name in found:
            with folder.open(name) as file:
                shutil.copyfileobj(file, quarantine)
    return folder.path(QUARANTINE)


def _bad_rows_fact(num_bad: int) -> str:
    return f"{num_bad:,}" + (f" (see {QUARANTINE})" if num_bad else "")


def _show_splits(splits: Mapping[str, Mapping[str, int]]) -> None:
    optional = ("negatives", "queries_without_positive", "merged", "left_out")
    columns = ["queries", "judgments", "positives"]
    columns += [column for column in optional if any(counts[column] for counts in splits.values())]
    show_table(
        "splits",
        ["split", *(column.replace("_", " ") for column in columns)],
        ([split, *(f"{counts[column]:,}" for column in columns)] for split, counts in splits.items()),
    )
