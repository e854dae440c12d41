"""Raw files to a corpus and a data set.

One Ray Data task a source reads and checks its rows and writes them as parts; then one task compares all passage ids
and one task a split compares its tables. The driver sees counts and names of parts.

After a kill, sources that were read to their end are not read again; the comparisons are made anew.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import ray
from ray.exceptions import NodeDiedError, RayTaskError, WorkerCrashedError

from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.inputs import checksum, short_names
from raydr.data.lookup import CorpusCheck, Hashes, finish_corpus, group_parts, hash_parts
from raydr.data.quarantine import check_allowed
from raydr.data.readers.base import Reader, Source
from raydr.data.schema import TableName
from raydr.data.splits import SplitCheck, SplitPlan, finish_split
from raydr.data.staging import STAGING, SourceRecord, read_record, stage_source
from raydr.errors import ConfigError, DataError, RaydrError
from raydr.runtime.console import progress_bar, say, show_summary, show_table
from raydr.stages.data_context import data_context
from raydr.stages.failures import root_cause
from raydr.store.artifact import MANIFEST, PLAN, Artifact, Building, Identity, Part, begin, fingerprint_of
from raydr.store.folder import Folder

QUARANTINE = "quarantine.jsonl"
#: Passages that one task hashes, at least. Each task costs the driver some 30 KB, so there is not one a part.
_HASH_ROWS = 200_000
#: Marks what an attempt left that the input made fail.
_FAILED = f"{STAGING}/failed.json"


def prepare(config: RunConfig, corpus: Folder, dataset: Folder, overwrite: bool = False) -> tuple[Artifact, Artifact]:
    """Read the sources of ``config.data.reader`` into a corpus and a data set.

    Rows that cannot be used are left out and listed in ``quarantine.jsonl`` of the artefact they would have gone
    to, also when there are too many of them.

    Args:
        config: the run; its ``data`` and ``seed`` are used.
        corpus: where the corpus goes.
        dataset: where queries, judgments and the source's own negatives go.
        overwrite: replace what is there.

    Returns:
        The corpus and the data set.

    Raises:
        DataError: a source cannot be read, or more than ``data.max_bad_rows`` rows are bad.
    """
    started = time.monotonic()
    inputs = _Inputs.of(config.data.reader)
    corpus_identity, dataset_identity = _identities(config, inputs)
    for folder, identity in ((corpus, corpus_identity), (dataset, dataset_identity)):
        _discard_failed(folder, identity)
    with (
        begin(corpus, corpus_identity, overwrite) as making_corpus,
        begin(dataset, dataset_identity, overwrite) as making_dataset,
    ):
        try:
            _read_sources(config, inputs, making_corpus, making_dataset)
            made_corpus = _finish_corpus(config, inputs, making_corpus, making_dataset)
            made_dataset = _finish_dataset(config, inputs, made_corpus, making_dataset)
        except DataError:
            for making in (making_corpus, making_dataset):
                if not making.folder.exists(MANIFEST):
                    making.folder.write_json(_FAILED, {})
            raise
    _show(made_corpus, made_dataset, time.monotonic() - started)
    return made_corpus, made_dataset


@dataclass(frozen=True)
class _Inputs:
    """The sources with what names and identifies them."""

    reader: Reader
    sources: list[Source]
    names: list[str]
    #: Checksum of each source's content.
    checksums: list[str]

    @classmethod
    def of(cls, reader: Reader) -> _Inputs:
        sources = reader.sources()
        digest = ray.remote(num_cpus=1)(_checksum)
        checksums = _get([digest.remote(reader, source) for source in sources])
        return cls(reader, sources, short_names([source.path for source in sources]), checksums)

    @property
    def paths(self) -> dict[str, str]:
        return {name: source.path for name, source in zip(self.names, self.sources, strict=True)}

    def with_passages(self) -> list[int]:
        return [at for at, source in enumerate(self.sources) if "passages" in source.tables]

    def with_other_tables(self) -> list[int]:
        return [at for at, source in enumerate(self.sources) if source.tables != ("passages",)]

    def fingerprints(self, indices: list[int]) -> dict[str, str]:
        """Checksums by what the sources hold; a number tells sources of the same kind apart."""
        found: dict[str, str] = {}
        for at in indices:
            source = self.sources[at]
            role = "/".join(filter(None, (source.role, source.split)))
            number = sum(key.partition("#")[0] == role for key in found)
            found[f"{role}#{number}" if number else role] = self.checksums[at]
        return found


def _checksum(reader: Reader, source: Source) -> str:
    own = reader.checksum(source)
    return fingerprint_of([own, *map(checksum, source.also)]) if source.also else own


def _identities(config: RunConfig, inputs: _Inputs) -> tuple[Identity, Identity]:
    key = inputs.reader.content_key()
    corpus = Identity(
        kind="corpus",
        config={"reader": key, "part_rows": config.data.part_rows},
        inputs=inputs.fingerprints(inputs.with_passages()),
    )
    subset = {"max_queries": dict(config.data.max_queries), "seed": config.seed} if config.data.max_queries else {}
    dataset = Identity(
        kind="dataset",
        config={"reader": key, "part_rows": config.data.part_rows, **subset},
        inputs={"corpus": corpus.fingerprint, **inputs.fingerprints(inputs.with_other_tables())},
    )
    return corpus, dataset


def _discard_failed(folder: Folder, identity: Identity) -> None:
    """Remove what an attempt left that failed for its input, if the input was mended since."""
    if not folder.exists(MANIFEST) and folder.exists(PLAN) and folder.exists(_FAILED):
        begun = Identity.model_validate(folder.read_json(PLAN))
        if begun.kind == identity.kind and begun.fingerprint != identity.fingerprint:
            say(f"{folder}: the input changed since the attempt that failed; starting anew")
            folder.remove()


def _read_sources(
    config: RunConfig, inputs: _Inputs, corpus: Artifact | Building, dataset: Artifact | Building
) -> None:
    """Read the sources that were not yet read to their end.

    A source that cannot be read is told at once, and ends the command when the others are read: they are kept, and
    nothing writes any more when it has ended.

    Raises:
        DataError: names all sources that cannot be read.
    """
    corpus_todo = _unread(corpus, inputs.with_passages())
    dataset_todo = _unread(dataset, inputs.with_other_tables())
    todo = sorted(corpus_todo | dataset_todo)
    wanted = set(inputs.with_passages() if isinstance(corpus, Building) else [])
    wanted.update(inputs.with_other_tables() if isinstance(dataset, Building) else [])
    if len(todo) < len(wanted):
        say(f"{len(wanted) - len(todo)} of {len(wanted)} sources were read before; reading the other {len(todo)}")
    if not todo:
        return
    items = [{"index": at, "corpus": at in corpus_todo, "dataset": at in dataset_todo} for at in todo]
    arguments = {
        "reader": inputs.reader,
        "sources": inputs.sources,
        "names": inputs.names,
        "corpus": corpus.folder,
        "dataset": dataset.folder,
        "part_rows": config.data.part_rows,
    }
    errors: list[str] = []
    num_rows, started = 0, time.monotonic()
    with progress_bar("reading", total=len(todo), unit="sources") as bar:
        for report in _reports(items, arguments):
            if report["error"]:
                errors.append(report["error"])
                say(f"{report['error']} The other sources are read to their end.")
            num_rows += report["rows"]
            rate = num_rows / (time.monotonic() - started)
            bar.describe(f"reading: {num_rows:,} rows, {rate:,.0f} rows/s")
            bar.advance(report["finished"])
    if errors:
        raise DataError("\n".join(sorted(set(errors))))


def _unread(making: Artifact | Building, indices: list[int]) -> set[int]:
    if isinstance(making, Artifact):
        return set()
    records = {at: read_record(making.folder, at) for at in indices}
    return {at for at, record in records.items() if record is None or not record.is_complete(making.done)}


def _reports(items: list[dict[str, Any]], arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from ray.data import DataContext

    context = data_context()
    # Each report is a block of its own, so that progress is seen while a source is being read.
    context.target_max_block_size = 1
    with DataContext.current(context):
        reports = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
            _read_source, batch_size=1, batch_format="pandas", num_cpus=1, fn_kwargs=arguments
        )
        yield from reports.iter_rows()


def _read_source(
    batch: Any,
    reader: Reader,
    sources: Sequence[Source],
    names: Sequence[str],
    corpus: Folder,
    dataset: Folder,
    part_rows: int,
) -> Iterator[dict[str, list[Any]]]:
    for item in batch.to_dict("records"):
        at = int(item["index"])
        into = (corpus if item["corpus"] else None, dataset if item["dataset"] else None)
        try:
            for rows in stage_source(reader, sources[at], at, names[at], *into, part_rows):
                yield {"rows": [rows], "finished": [0], "error": [""]}
        except RaydrError as error:
            # An exception would come back wrapped in Ray's own, with a traceback in its message.
            yield {"rows": [0], "finished": [0], "error": [str(error)]}
        else:
            yield {"rows": [0], "finished": [1], "error": [""]}


def _finish_corpus(
    config: RunConfig, inputs: _Inputs, making: Artifact | Building, dataset: Artifact | Building
) -> Artifact:
    if isinstance(making, Artifact):
        say(f"the corpus at {making.folder} is there with the same fingerprint {making.fingerprint}: reused")
        return making
    folder, records = making.folder, _records(making.folder, inputs.with_passages())
    parts = {name: part for record in records for name, part in record.parts.items()}
    hashing = ray.remote(num_cpus=1)(hash_parts)
    # Tried again after it was lost in the middle, it would read parts that it has shortened already.
    finishing = ray.remote(num_cpus=1, max_retries=0)(_finish_corpus_task)
    hashes = [hashing.remote(folder, names) for names in group_parts(parts, _HASH_ROWS)]
    check: CorpusCheck = _get(finishing.remote(folder, parts, hashes, inputs.reader.passages_repeat, inputs.paths))
    making.done.clear()
    making.done.update(check.parts)
    num_bad = check.num_bad + sum(record.num_bad for record in records)
    total, examples = num_bad, [row for record in records for row in record.examples] + check.examples
    quarantines = [_write_quarantine(folder)]
    if isinstance(dataset, Building):
        # What reading found for the data set counts already here: all that is wrong is told at once.
        others = _records(dataset.folder, inputs.with_other_tables())
        total += sum(record.num_bad for record in others)
        examples += [row for record in others for row in record.examples]
        quarantines.append(_write_quarantine(dataset.folder))
    check_allowed(total, examples, config.data.max_bad_rows, " and ".join(filter(None, quarantines)))
    folder.remove(STAGING)
    num_merged = check.num_merged + sum(record.num_merged for record in records)
    return making.finish(
        {"num_passages": check.num_passages, "num_merged": num_merged, "num_bad": num_bad},
        run_config=config.model_dump(mode="json"),
    )


def _finish_corpus_task(
    folder: Folder, parts: Mapping[str, Part], hashes: Sequence[Any], passages_repeat: bool, paths: Mapping[str, str]
) -> CorpusCheck:
    gathered: list[Hashes] = ray.get(list(hashes))
    return finish_corpus(folder, parts, gathered, passages_repeat, paths)


def _finish_dataset(config: RunConfig, inputs: _Inputs, corpus: Artifact, making: Artifact | Building) -> Artifact:
    if isinstance(making, Artifact):
        say(f"the data set at {making.folder} is there with the same fingerprint {making.fingerprint}: reused")
        return making
    folder, records = making.folder, _records(making.folder, inputs.with_other_tables())
    plans = _split_plans(config, inputs, records)
    finishing = ray.remote(num_cpus=1)(_finish_split_task)
    checks: list[SplitCheck] = _get([finishing.remote(plan, folder, corpus.folder) for plan in plans])
    making.done.clear()
    for check in checks:
        making.done.update(check.parts)
    num_bad = sum(record.num_bad for record in records) + sum(check.num_bad for check in checks)
    examples = [row for record in records for row in record.examples]
    examples += [row for check in checks for row in check.examples]
    quarantines = [_write_quarantine(folder)]
    if corpus.info["num_bad"]:
        quarantines.append(corpus.folder.path(QUARANTINE))
    total = num_bad + corpus.info["num_bad"]
    check_allowed(total, examples, config.data.max_bad_rows, " and ".join(filter(None, quarantines)))
    folder.remove(STAGING)
    return making.finish(
        {
            "splits": {plan.split: check.counts for plan, check in zip(plans, checks, strict=True)},
            "num_unused_queries": sum(record.num_unused for record in records),
            "num_bad": num_bad,
        },
        run_config=config.model_dump(mode="json"),
    )


def _split_plans(config: RunConfig, inputs: _Inputs, records: Sequence[SourceRecord]) -> list[SplitPlan]:
    staged: dict[str, dict[TableName, list[str]]] = {}
    for record in records:
        for name in record.parts:
            _, table, split, _ = name.split("/")
            staged.setdefault(split, {}).setdefault(cast(TableName, table), []).append(name)
    if not any("queries" in tables for tables in staged.values()):
        raise DataError("the sources hold no query that belongs to a split. Check data.reader: files and splits.")
    unknown = sorted(config.data.max_queries.keys() - staged.keys())
    if unknown:
        raise ConfigError(f"data.max_queries names {unknown[0]!r}; the data has the splits {', '.join(sorted(staged))}")
    return [
        SplitPlan(
            split=split,
            staged=tables,
            queries_repeat=inputs.reader.passages_repeat,
            max_queries=config.data.max_queries.get(split),
            seed=config.seed,
            part_rows=config.data.part_rows,
            paths=inputs.paths,
        )
        for split, tables in sorted(staged.items())
    ]


def _finish_split_task(plan: SplitPlan, folder: Folder, corpus: Folder) -> SplitCheck:
    return finish_split(plan, folder, Corpus.open(corpus))


def _records(folder: Folder, indices: Sequence[int]) -> list[SourceRecord]:
    records = [read_record(folder, at) for at in indices]
    return [record for record in records if record is not None]


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


def _get(references: Any) -> Any:
    """``ray.get``, with raydr's own errors as they were raised."""
    try:
        return ray.get(references)
    except RayTaskError as error:
        if isinstance(error.cause, RaydrError):
            raise error.cause from None
        raise
    except (NodeDiedError, WorkerCrashedError) as error:
        raise RaydrError(
            f"a worker was lost while the corpus was finished ({root_cause(error)}): run the same command again"
        ) from error


def _show(corpus: Artifact, dataset: Artifact, seconds: float) -> None:
    splits = dataset.info["splits"]
    optional = ("negatives", "queries_without_positive", "merged", "left_out")
    columns = ["queries", "judgments", "positives"]
    columns += [column for column in optional if any(counts[column] for counts in splits.values())]
    show_table(
        "splits",
        ["split", *(column.replace("_", " ") for column in columns)],
        ([split, *(f"{counts[column]:,}" for column in columns)] for split, counts in splits.items()),
    )
    num_bad = corpus.info["num_bad"] + dataset.info["num_bad"]
    show_summary(
        "prepared",
        {
            "passages": f"{corpus.info['num_passages']:,} ({corpus.info['num_merged']:,} copies merged)",
            "queries in no split": f"{dataset.info['num_unused_queries']:,}",
            "bad rows left out": f"{num_bad:,}" + (f" (see {QUARANTINE})" if num_bad else ""),
            "corpus": f"{corpus.folder} ({corpus.fingerprint})",
            "data set": f"{dataset.folder} ({dataset.fingerprint})",
            "seconds": f"{seconds:.1f}",
        },
    )
