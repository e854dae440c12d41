"""Corpus and data set: the passages of the reader's files, and queries, judgments and negatives in splits.

A task reads and checks the rows of a source, or of a range of its lines, and writes parts. If a source holds passages
and other tables, each of the two artefacts reads it once. Then passages with the same content are merged
(:mod:`raydr.data.lookup`). A task for each split compares its tables with the corpus and with the held-out queries.
After a kill, the comparisons are repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

from raydr.artefacts import Context, Node, artefact
from raydr.artefacts.context import of_data
from raydr.artefacts.noisy_dataset import inject_noise
from raydr.artefacts.sources import Sources, left_out, nothing_usable, read_sources, settle
from raydr.console import counted, say, show_table, warn
from raydr.data import Corpus
from raydr.data.config import DataConfig, HoldOut
from raydr.data.lookup import Unfinished, drop_repeats, find_repeats, hash_group, report_repeats, write_hashes
from raydr.data.readers.base import Reader, Target
from raydr.data.splits import FinishedSplit, SplitPlan, finish_split
from raydr.data.staging import STAGING, Finished, SourceRecord
from raydr.data.tables import TableName
from raydr.distributed.pool import Pool
from raydr.errors import ConfigError
from raydr.store import Artifact, Building, Part

_NOTHING: Mapping[str, Any] = MappingProxyType({})
ABSENT = "judgments name passages that no search can find ({}): they count in measures, and not in training"
OWN_PASSAGES = (
    "queries are passages of the corpus, word for word and by id ({}): each finds itself first. Set data.skip_own_id: "
    "true to leave a query's own passage out, as BEIR does"
)
#: Minimum of passages that a task compares. A task takes 30 KB of the driver, so a task per part is too many.
_GROUP_ROWS = 200_000


@of_data
def declare_corpus(run: Context) -> Node:
    """Return the node of the corpus."""
    return prepare_corpus.node("corpus", **_reading(run, "corpus"), data=run.of_data.data)


def _reading(run: Context, target: Target) -> dict[str, Any]:
    """Return the arguments of a stage that state its sources."""
    reader = run.of_data.data.reader
    sources, checksums = run.facts.sources(reader)
    identity = {"rows_of": run.facts.content_key(reader), "checksums": sources.by_role(target, checksums)}
    return {"reader": reader, "sources": sources, **identity}


def content_of_corpus(of: Any) -> dict[str, Any]:
    # A key has no order of settings; that of the sources decides the order of the passages.
    order = [*of.checksums]
    return {"rows_of": of.rows_of, "checksums": of.checksums, "order": order, "part_rows": of.data.part_rows}


@artefact("corpus", version=4, rows=lambda of: of.sources.num_rows(), content=content_of_corpus)
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
        making: corpus to make.
        pool: pool that reads sources and hashes passages.
        reader: reader of the format.
        rows_of: settings of the reader that determine its rows.
        sources: files to read.
        checksums: checksums of the sources by content.
        data: settings; only ``part_rows`` and ``max_bad_rows`` apply.

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
        pool: pool for the work.
        corpus: corpus whose sources are read.
        parts: passage parts by name, at least one.
        passages_repeat: whether copies are expected.
        paths: full paths of the sources by short name, for messages.
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


@of_data
def declare_prepared(run: Context) -> Node:
    """Return the node of the prepared data set: queries, judgments and negatives of all splits."""
    config, corpus = run.of_data, declare_corpus(run)
    return prepare_dataset.node(
        "dataset", corpus=corpus, **_reading(run, "dataset"), data=config.data, seed=config.seed
    )


@of_data
def declare_dataset(run: Context) -> Node:
    """Return the node of the data set of trainings and evaluations, with injected noise if configured."""
    config, prepared = run.of_data, declare_prepared(run)
    if config.inject_noise is None:
        return prepared
    how: dict[str, Any] = {"settings": config.inject_noise, "split": config.data.train_split, "seed": config.seed}
    return inject_noise.node("inject-noise", dataset=prepared, corpus=declare_corpus(run), **how)


def declare_data(context: Context) -> dict[str, Any]:
    """Return the nodes of data set and corpus, by role."""
    return {"dataset": declare_dataset(context), "corpus": declare_corpus(context)}


def _content_of_dataset(of: Any) -> dict[str, Any]:
    """Return the content of the key. Splits and the seed enter it only where queries are drawn or left out."""
    data: DataConfig = of.data
    content = content_of_corpus(of)
    if data.max_queries:
        content |= {"max_queries": data.max_queries, "seed": of.seed}
    if data.hold_out:
        content |= {"hold_out": data.hold_out, "of": data.train_split, "seed": of.seed}
    if data.leaked_queries == "leave_out":
        content |= {"left_out_of": data.train_split, "queries_of": data.held_out_splits}
    if data.skip_own_id:
        content["skip_own_id"] = True
    return content


@artefact("dataset", version=8, rows=lambda of: of.sources.num_rows(), content=_content_of_dataset)
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
        making: data set to make.
        pool: pool that reads sources and compares splits with the corpus.
        corpus: corpus of the same sources; its bad rows count as well.
        reader: reader of the format.
        rows_of: settings of the reader that determine its rows.
        sources: files to read.
        checksums: checksums of the sources by content.
        data: settings of splits, parts, bad rows, held-out and leaked queries.
        seed: seed of ``data.max_queries`` and ``data.hold_out``; the id of a query decides with it.

    Returns:
        ``splits`` (counts of each), ``num_unused_queries`` (of no split) and ``num_bad``.

    Raises:
        DataError: a source cannot be read, more than ``data.max_bad_rows`` rows are bad, or there are no queries.
        ConfigError: ``data.max_queries`` names a split that the data has not.
    """
    hold_out = HoldOut(data.train_split, data.hold_out, seed) if data.hold_out else None
    folder, records = making.folder, read_sources(making, pool, reader, sources, "dataset", data.part_rows, hold_out)
    if not any(name.startswith(f"{STAGING}/queries/") for record in records for name in record.parts):
        raise nothing_usable("query that belongs to a split", records, reader)
    plans = _split_plans(reader, sources, data, seed, records)
    calls = [(plan, folder, Corpus(corpus)) for plan in plans]
    checks: list[FinishedSplit] = pool.map(finish_split, calls, "compare", "splits")
    num_bad = settle(making, records, checks, data.max_bad_rows, corpus)
    counts = {plan.split: check.counts for plan, check in zip(plans, checks, strict=True)}
    for record in records:
        for remark in record.remarks:
            say(remark)
    _warn_of_missing_splits(data, counts)
    _tell_of_leaks(data, checks)
    _warn_of_counts(counts, "absent", ABSENT)
    _warn_of_counts(counts, "own_passages", OWN_PASSAGES)
    num_unused = sum(record.num_unused for record in records)
    _show_splits(counts)
    if num_unused or num_bad:
        unused = f", {counted(num_unused, 'query', 'queries')} in no split" if num_unused else ""
        num_queries = sum(of_split["queries"] for of_split in counts.values())
        say(f"data set: {counted(num_queries, 'query', 'queries')}{unused}{left_out(num_bad)}")
    return {"splits": counts, "num_unused_queries": num_unused, "num_bad": num_bad}


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


def _warn_of_missing_splits(data: DataConfig, there: Collection[str]) -> None:
    """Warn of missing dev and test splits, which choose the epoch and measure the model."""
    absent = [split for split in data.held_out_splits if split and split not in there]
    if empty := [split for split in absent if split in data.hold_out]:
        warn(
            f"data.hold_out took no query for {' or '.join(empty)}, since {data.train_split} has too few: bring more "
            "pairs, or raise the share"
        )
    if missing := [split for split in absent if split not in data.hold_out]:
        warn(
            f"the data have the splits {', '.join(there)}, and none called {' or '.join(missing)} (data.dev_split, "
            f"data.test_splits). data.hold_out: {{{', '.join(f'{split}: 0.1' for split in missing)}}} takes a tenth of "
            f"{data.train_split} for each"
        )


def _tell_of_leaks(data: DataConfig, checks: Sequence[FinishedSplit]) -> None:
    """Warn that measures on dev or test will be too high, or print how many queries were left out."""
    for check in checks:
        if not check.counts["leaked"]:
            continue
        leaked = (
            f"{counted(check.counts['leaked'], 'query', 'queries')} of {data.train_split} asked in "
            f"{' or '.join(data.held_out_splits)} too, word for word or nearly"
        )
        if data.leaked_queries == "leave_out":
            say(f"{leaked}: left out of the training")
            continue
        shown = "".join(
            f"\n  {_shortened(query)} is held out {'word for word' if query == other else f'as {_shortened(other)}'}"
            for query, other in check.leaked
        )
        warn(
            f"LEAKAGE: {leaked}. Measures there will be too high: set data.leaked_queries: leave_out to train without "
            f"them. For example:{shown}"
        )


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 200 else f"{text[:200]}...")


def _warn_of_counts(splits: Mapping[str, Mapping[str, int]], count: str, message: str) -> None:
    """Warn of counts above 0; the message has a placeholder for the numbers by split."""
    if numbers := [f"{num:,} of {split}" for split, counts in splits.items() if (num := counts.get(count, 0))]:
        warn(message.format(", ".join(numbers)))


def _show_splits(splits: Mapping[str, Mapping[str, int]]) -> None:
    optional = ("negatives", "absent", "queries_without_positive", "merged", "left_out", "leaked")
    columns = ["queries", "judgments", "positives"]
    columns += [column for column in optional if any(counts[column] for counts in splits.values())]
    show_table(
        "splits",
        ["split", *(column.replace("_", " ") for column in columns)],
        ([split, *(f"{counts[column]:,}" for column in columns)] for split, counts in splits.items()),
    )
