"""Raw files to a corpus and a data set.

One call a source reads and checks its rows and writes them as parts; then one call compares all passage ids and one a
split compares its tables. A source that holds passages and other tables is read once for each of the two
artefacts. After a kill, the comparisons are made anew.

Rows that cannot be used are left out and listed in ``quarantine.jsonl`` of the artefact they would have gone to, also
when there are too many of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from raydr.artefacts.context import Context, of_data
from raydr.artefacts.declaration import Node, artefact
from raydr.artefacts.noisy_dataset import inject_noise
from raydr.artefacts.sources import Sources, read_sources
from raydr.console import counted, say, show_table, warn
from raydr.data.config import DataConfig, HoldOut
from raydr.data.corpus import Corpus
from raydr.data.lookup import finish_corpus, group_parts, hash_parts
from raydr.data.quarantine import check_allowed
from raydr.data.readers.base import Reader
from raydr.data.schema import TableName
from raydr.data.splits import FinishedSplit, SplitPlan, finish_split
from raydr.data.staging import STAGING, Finished, SourceRecord
from raydr.distributed.pool import Pool
from raydr.errors import ConfigError, DataError
from raydr.store.artifact import Artifact, Building
from raydr.store.folder import Folder
from raydr.store.manifest import Part

QUARANTINE = "quarantine.jsonl"
_NOTHING: Mapping[str, Any] = MappingProxyType({})
#: Passages that one task hashes, at least. Each task costs the driver some 30 KB, so there is not one a part.
_HASH_ROWS = 200_000


@of_data
def corpus(run: Context) -> Node:
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


@of_data
def prepared(run: Context) -> Node:
    """Queries, judgments and the source's own negatives, of all splits."""
    config, data = run.of_data, run.of_data.data
    sources, checksums = run.facts.sources(data.reader)
    return prepare_dataset.node(
        "dataset",
        corpus=corpus(run),
        reader=data.reader,
        rows_of=run.facts.content_key(data.reader),
        sources=sources,
        checksums=sources.by_role("dataset", checksums),
        data=data,
        seed=config.seed,
    )


@of_data
def dataset(run: Context) -> Node:
    """What is trained on and evaluated: the prepared data set, made noisy on purpose if the config says so."""
    settings = run.of_data.inject_noise
    if settings is None:
        return prepared(run)
    split, seed = run.of_data.data.train_split, run.of_data.seed
    return inject_noise.node(
        "inject-noise", dataset=prepared(run), corpus=corpus(run), settings=settings, split=split, seed=seed
    )


def _content_of_corpus(of: Any) -> dict[str, Any]:
    return {"rows_of": of.rows_of, "checksums": of.checksums, "part_rows": of.data.part_rows}


@artefact("corpus", rows=lambda of: of.sources.num_rows(), content=_content_of_corpus)
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
        raise _nothing_usable("passage", records, reader)
    groups = group_parts(parts, _HASH_ROWS)
    hashed = pool.map(_write_hashes, [(folder, at, names) for at, names in enumerate(groups)], "hash")
    # Tried again after it was lost in the middle, it would read parts that it has shortened already.
    check: Finished = pool.run(
        _finish_corpus, folder, parts, hashed, reader.passages_repeat, sources.paths, retried=False
    )
    num_bad = _settle(making, records, [check], data.max_bad_rows)
    num_passages = check.counts["passages"]
    num_merged = check.counts["merged"] + sum(record.num_merged for record in records)
    merged = f", {counted(num_merged, 'copy', 'copies')} merged" if num_merged else ""
    say(f"corpus: {counted(num_passages, 'passage')}{merged}{_left_out(num_bad)}")
    return {"num_passages": num_passages, "num_merged": num_merged, "num_bad": num_bad}


def _content_of_dataset(of: Any) -> dict[str, Any]:
    """What a data set depends on: the names of splits and the seed only where queries are drawn or left out."""
    data: DataConfig = of.data
    content = _content_of_corpus(of)
    if data.max_queries:
        content |= {"max_queries": data.max_queries, "seed": of.seed}
    if data.hold_out:
        content |= {"hold_out": data.hold_out, "of": data.train_split, "seed": of.seed}
    if data.leaked_queries == "leave_out":
        content |= {"left_out_of": data.train_split, "queries_of": data.held_out_splits}
    if data.skip_own_id:
        content["skip_own_id"] = True
    return content


@artefact("dataset", version=3, rows=lambda of: of.sources.num_rows(), content=_content_of_dataset)
def prepare_dataset(
    making: Building,
    pool: Pool,
    corpus: Artifact,
    *,
    reader: Reader,
    rows_of: Mapping[str, Any] = _NOTHING,
    sources: Sources,
    checksums: Mapping[str, str] = _NOTHING,
    data: DataConfig,
    seed: int,
) -> dict[str, Any]:
    """Read queries, judgments and negatives of the sources into a ``dataset`` artefact.

    Args:
        making: the data set.
        pool: where sources are read and splits compared with the corpus.
        corpus: made from the same sources; its bad rows count as well.
        reader: knows the format of the sources.
        rows_of: what decides the reader's rows besides its files.
        sources: what to read.
        checksums: of the sources, by what they hold.
        data: its ``part_rows``, ``max_bad_rows``, ``max_queries``, ``hold_out``, ``leaked_queries`` and
            ``skip_own_id`` are used, and the names of its splits.
        seed: decides with each query's id whether it is one of ``data.max_queries``, and whether it is held out.

    Returns:
        ``splits`` (counts of each), ``num_unused_queries`` (of no split) and ``num_bad``.

    Raises:
        DataError: a source cannot be read, more than ``data.max_bad_rows`` rows are bad, or there are no queries.
        ConfigError: ``data.max_queries`` names a split that the data has not.
    """
    hold_out = HoldOut(data.train_split, data.hold_out, seed) if data.hold_out else None
    folder, records = making.folder, read_sources(making, pool, reader, sources, "dataset", data.part_rows, hold_out)
    if not any(name.startswith(f"{STAGING}/queries/") for record in records for name in record.parts):
        raise _nothing_usable("query that belongs to a split", records, reader)
    plans = _split_plans(reader, sources, data, seed, records)
    calls = [(plan, folder, Corpus(corpus)) for plan in plans]
    checks: list[FinishedSplit] = pool.map(finish_split, calls, "compare", "splits")
    num_bad = _settle(making, records, checks, data.max_bad_rows, corpus)
    counts = {plan.split: check.counts for plan, check in zip(plans, checks, strict=True)}
    for record in records:
        for remark in record.remarks:
            say(remark)
    _warn_of_missing_splits(data, counts)
    _tell_of_leaks(data, checks)
    _tell_of_absent_passages(counts)
    _tell_of_own_passages(counts)
    num_unused = sum(record.num_unused for record in records)
    _show_splits(counts)
    if num_unused or num_bad:
        say(f"data set: {counted(num_unused, 'query', 'queries')} in no split{_left_out(num_bad)}")
    return {"splits": counts, "num_unused_queries": num_unused, "num_bad": num_bad}


def _nothing_usable(what: str, records: Sequence[SourceRecord], reader: Reader) -> DataError:
    """What to say where nothing can be gone on with: most often the columns are called otherwise."""
    num_bad = sum(record.num_refused for record in records)
    examples = [row for record in records for row in record.examples][:5]
    shown = "".join(f"\n  {row}" for row in examples)
    found = f": {counted(num_bad, 'bad row')}, the first:{shown}\n" if examples else ". "
    columns = ", and columns, which says what they are called" if hasattr(reader, "columns") else ""
    return DataError(f"the sources hold not one usable {what}{found}Check data.reader: files and splits{columns}.")


def _settle(
    making: Building,
    records: Sequence[SourceRecord],
    checks: Sequence[Finished],
    max_bad_rows: int,
    corpus: Artifact | None = None,
) -> int:
    """Take over the parts that the checks have left, and refuse too many bad rows, the corpus's among them."""
    making.done.clear()
    for check in checks:
        making.done.update(check.parts)
    found: list[SourceRecord | Finished] = [*records, *checks]
    num_bad = sum(one.num_bad for one in found)
    examples = [row for one in found if one.num_bad for row in one.examples]
    of_corpus = corpus.info["num_bad"] if corpus is not None else 0
    quarantines = [_write_quarantine(making.folder), corpus.folder.path(QUARANTINE) if corpus and of_corpus else ""]
    check_allowed(num_bad + of_corpus, examples, max_bad_rows, " and ".join(filter(None, quarantines)))
    making.folder.remove(STAGING)
    return num_bad


def _write_hashes(folder: Folder, number: int, names: Sequence[str]) -> str:
    """Keep the hashes of some parts beside them, until all are compared; returns the file's name."""
    hashes, name = hash_parts(folder, names), f"{STAGING}/hashes-{number:05d}.npz"
    with folder.publish(name) as path, open(path, "wb") as file:
        np.savez(file, ids=hashes["ids"], contents=hashes["contents"])
    return name


def _finish_corpus(
    folder: Folder, parts: Mapping[str, Part], hashed: Sequence[str], passages_repeat: bool, paths: Mapping[str, str]
) -> Finished:
    found = []
    for name in hashed:
        with np.load(folder.localize(name), allow_pickle=False) as arrays:
            found.append(dict(arrays))
    return finish_corpus(folder, parts, found, passages_repeat, paths)


def _split_plans(
    reader: Reader, sources: Sources, data: DataConfig, seed: int, records: Sequence[SourceRecord]
) -> list[SplitPlan]:
    staged: dict[str, dict[TableName, list[str]]] = {}
    for record in records:
        for name in record.parts:
            _, table, split, _ = name.split("/")
            staged.setdefault(split, {}).setdefault(cast(TableName, table), []).append(name)
    held_out = [name for split in data.held_out_splits for name in sorted(staged.get(split, {}).get("queries", ()))]
    unknown = sorted(data.max_queries.keys() - staged.keys())
    if unknown:
        raise ConfigError(f"data.max_queries names {unknown[0]!r}; the data has the splits {', '.join(sorted(staged))}")
    return [
        SplitPlan(
            split=split, staged=tables, queries_repeat=reader.passages_repeat, max_queries=data.max_queries.get(split),
            seed=seed, part_rows=data.part_rows, held_out=held_out if split == data.train_split else (),
            leave_out_leaked=data.leaked_queries == "leave_out", skip_own_id=data.skip_own_id, paths=sources.paths,
        )
        for split, tables in sorted(staged.items())
    ]  # fmt: skip


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


def _left_out(num_bad: int) -> str:
    return f", {counted(num_bad, 'bad row')} left out (see {QUARANTINE})" if num_bad else ""


def _warn_of_missing_splits(data: DataConfig, there: Collection[str]) -> None:
    """Before a training that nothing chooses the epoch of, and that nothing is measured on."""
    missing = [split for split in data.held_out_splits if split and split not in there]
    if missing:
        warn(
            f"the data have the splits {', '.join(there)}, and none called {' or '.join(missing)} (data.dev_split, "
            f"data.test_splits): data.hold_out: {{{', '.join(f'{split}: 0.1' for split in missing)}}} makes such of "
            f"{data.train_split}"
        )


def _tell_of_leaks(data: DataConfig, checks: Sequence[FinishedSplit]) -> None:
    """Say loudly that what is measured on dev or test would be too good, and in a line that it will not be."""
    for check in checks:
        if not check.counts["leaked"]:
            continue
        found = (
            f"{counted(check.counts['leaked'], 'query', 'queries')} of {data.train_split} asked in "
            f"{' or '.join(data.held_out_splits)} too, word for word or nearly"
        )
        if data.leaked_queries == "leave_out":
            say(f"{found}: left out of the training")
            continue
        shown = "".join(f"\n  {one!r:.100} is held out as {other!r:.100}" for one, other in check.leaked)
        warn(
            f"LEAKAGE: {found}: what is measured there is too good; set data.leaked_queries: leave_out to train "
            f"without them. For example:{shown}"
        )


def _tell_of_absent_passages(splits: Mapping[str, Mapping[str, int]]) -> None:
    absent = {split: num for split, counts in splits.items() if (num := counts["absent"])}
    if absent:
        where = ", ".join(f"{num:,} of {split}" for split, num in absent.items())
        warn(f"judgments name passages that no search can find ({where}): they count in measures, and not in training")


def _tell_of_own_passages(splits: Mapping[str, Mapping[str, int]]) -> None:
    found = {split: num for split, counts in splits.items() if (num := counts.get("own_passages", 0))}
    if found:
        where = ", ".join(f"{num:,} of {split}" for split, num in found.items())
        warn(
            f"queries are passages of the corpus, word for word and by id ({where}): each finds itself first. Set "
            "data.skip_own_id: true to leave a query's own passage out, as BEIR does"
        )


def _show_splits(splits: Mapping[str, Mapping[str, int]]) -> None:
    optional = ("negatives", "absent", "queries_without_positive", "merged", "left_out", "leaked")
    columns = ["queries", "judgments", "positives"]
    columns += [column for column in optional if any(counts[column] for counts in splits.values())]
    show_table(
        "splits",
        ["split", *(column.replace("_", " ") for column in columns)],
        ([split, *(f"{counts[column]:,}" for column in columns)] for split, counts in splits.items()),
    )
