"""The sources that a reader finds: checksummed, and read into parts by one Ray task each.

The driver sees counts and names of parts. After a kill, sources that were read to their end are not read again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from raydr.data.inputs import checksum, short_names
from raydr.data.readers.base import Reader, Source, Target
from raydr.data.staging import SourceRecord, read_record, stage_source
from raydr.errors import DataError, RaydrError
from raydr.runtime.console import progress_bar, say
from raydr.stages.tasks import fetch
from raydr.store.artifact import Building, fingerprint_of
from raydr.store.folder import Folder


@dataclass(frozen=True)
class Sources:
    """What a reader reads, in its order.

    Args:
        files: the sources.
        names: a short name of each, which goes into the column ``source``.
    """

    files: tuple[Source, ...]
    names: tuple[str, ...]

    @property
    def paths(self) -> dict[str, str]:
        """Full paths by short names."""
        return {name: source.path for name, source in zip(self.names, self.files, strict=True)}

    def of(self, target: Target) -> list[int]:
        """Places of the sources that have rows for an artefact."""
        return [at for at, source in enumerate(self.files) if source.feeds(target)]

    def by_role(self, target: Target, checksums: Sequence[str]) -> dict[str, str]:
        """Checksums of the sources of an artefact by what they hold; a number tells sources of the same kind apart."""
        found: dict[str, str] = {}
        for at in self.of(target):
            source = self.files[at]
            role = "/".join(filter(None, (source.role, source.split)))
            number = sum(key.partition("#")[0] == role for key in found)
            found[f"{role}#{number}" if number else role] = checksums[at]
        return found


def find_sources(reader: Reader) -> Sources:
    """Look for the files of a reader; none is read.

    Raises:
        DataError: a file that must be there is missing.
    """
    files = reader.sources()
    return Sources(tuple(files), tuple(short_names([source.path for source in files])))


def source_checksums(reader: Reader, sources: Sources) -> list[str]:
    """What identifies the content of each source, one task a source.

    Raises:
        DataError: a file cannot be read.
    """
    digest = ray.remote(num_cpus=1)(_checksum)
    found: list[str] = fetch([digest.remote(reader, source) for source in sources.files])
    return found


def _checksum(reader: Reader, source: Source) -> str:
    own = reader.checksum(source)
    return fingerprint_of([own, *map(checksum, source.also)]) if source.also else own


def read_sources(
    making: Building, reader: Reader, sources: Sources, target: Target, part_rows: int
) -> list[SourceRecord]:
    """Read the sources of an artefact that were not yet read to their end.

    A source that cannot be read is told at once, and ends the command when the others are read: they are kept, and
    nothing writes any more when it has ended.

    Returns:
        What each source gave, in the order of the sources.

    Raises:
        DataError: names all sources that cannot be read.
    """
    wanted = sources.of(target)
    todo = [at for at in wanted if not _is_read(making, at)]
    if len(todo) < len(wanted):
        say(f"{len(wanted) - len(todo)} of {len(wanted)} sources were read before; reading the other {len(todo)}")
    read = ray.remote(num_cpus=1, num_returns="streaming")(_read_source)
    tasks = [
        read.remote(reader, sources.files[at], at, sources.names[at], making.folder, target, part_rows) for at in todo
    ]
    errors: list[str] = []
    num_rows, started = 0, time.monotonic()
    with progress_bar(f"reading the {target}", total=len(todo), unit="sources") as bar:
        for report in _reports(tasks):
            if isinstance(report, str):
                errors.append(report)
                say(f"{report} The other sources are read to their end.")
            elif report is None:
                bar.advance(1)
            else:
                num_rows += report
                rate = num_rows / (time.monotonic() - started)
                bar.describe(f"reading the {target}: {num_rows:,} rows, {rate:,.0f} rows/s")
    if errors:
        raise DataError("\n".join(sorted(set(errors))))
    return [record for at in wanted if (record := read_record(making.folder, at)) is not None]


def _is_read(making: Building, at: int) -> bool:
    record = read_record(making.folder, at)
    return record is not None and record.is_complete(making.done)


def _reports(tasks: list[Any]) -> Iterator[int | str | None]:
    """What the tasks tell while they run, in the order of time; they are cancelled if the caller stops early."""
    left = list(tasks)
    try:
        while left:
            (task,), left = ray.wait(left, num_returns=1, fetch_local=False)
            reference = next(task, None)
            if reference is not None:
                left.append(task)
                yield fetch(reference)
    finally:
        for task in left:
            ray.cancel(task)


def _read_source(
    reader: Reader, source: Source, at: int, name: str, folder: Folder, target: Target, part_rows: int
) -> Iterator[int | str | None]:
    """Yields numbers of rows, then None at the end of the source, or what is wrong with it."""
    try:
        yield from stage_source(reader, source, at, name, folder, target, part_rows)
    except RaydrError as error:
        # A result and not an exception: the other sources go on.
        yield str(error)
    else:
        yield None
