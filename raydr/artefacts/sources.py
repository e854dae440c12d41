"""Sources of a reader: their checksums, and their reading into parts.

A task reads a source, or a range of a large file. The driver holds only counts and names of parts. After a kill,
complete sources are not read again.

Bad rows are left out. ``quarantine.jsonl`` of the artefact lists them, also when they are too many.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from raydr.console import counted, progress_bar, say
from raydr.data.config import HoldOut
from raydr.data.inputs import checksum, place_of, short_names
from raydr.data.ranges import count_lines, divide_lines, piece_starts
from raydr.data.readers.base import Reader, Source, Target
from raydr.data.rows import check_allowed
from raydr.data.staging import STAGING, Finished, SourceRecord, StagedSource, stage_source
from raydr.distributed.pool import Pool
from raydr.errors import DataError, RaydrError
from raydr.store import Artifact, Building, Folder
from raydr.store.filesystems import FileDetails
from raydr.store.identity import fingerprint_of

QUARANTINE = "quarantine.jsonl"
#: Typical bytes of a text row; with compressed files the estimate of rows is too low, so that Ray starts later.
_BYTES_PER_ROW = 300


@dataclass(frozen=True)
class Sources:
    """Sources of a reader, in its order.

    Args:
        files: the sources.
        names: their short names, for the column ``source``.
    """

    files: tuple[Source, ...]
    names: tuple[str, ...]

    @property
    def paths(self) -> dict[str, str]:
        """Full paths by short name."""
        return {name: source.path for name, source in zip(self.names, self.files, strict=True)}

    def of(self, target: Target) -> list[int]:
        """Return the positions of the sources with rows for an artefact."""
        return [at for at, source in enumerate(self.files) if source.feeds(target)]

    def by_role(self, target: Target, checksums: Sequence[str]) -> dict[str, str]:
        """Return the checksums of an artefact's sources by content; numbers distinguish sources of the same content."""
        by_role: dict[str, str] = {}
        for at in self.of(target):
            source = self.files[at]
            role = "/".join(filter(None, (source.role, source.split)))
            number = sum(key.partition("#")[0] == role for key in by_role)
            by_role[f"{role}#{number}" if number else role] = checksums[at]
        return by_role

    def versions(self) -> list[str]:
        """Return path, size and time of change of each file; while they are the same, the content is."""
        return [f"{path}: {_version(path)}" for source in self.files for path in (source.path, *source.also)]

    def num_rows(self) -> int:
        """Estimate the number of rows from the size of the files."""
        paths = {path for source in self.files for path in (source.path, *source.also)}
        return sum(details.size for path in paths for details in _details(path)) // _BYTES_PER_ROW


def _details(path: str) -> list[FileDetails]:
    """Return the details of a file, or of all files of a local folder, whose own time stays when they change."""
    if Path(path).is_dir():
        listing = Folder(path).listing()
        return [listing[name] for name in sorted(listing)]
    folder, name = place_of(path)
    details = folder.details(name) if name else None
    return [] if details is None else [details]


def _version(path: str) -> str:
    # Readers without files state their versions in the source.
    return "; ".join(details.version for details in _details(path))


def find_sources(reader: Reader) -> Sources:
    """List the sources of a reader, without reading them.

    Raises:
        DataError: a file that must be there is missing.
    """
    files = reader.sources()
    return Sources(tuple(files), tuple(short_names([source.path for source in files])))


def source_checksums(pool: Pool, reader: Reader, sources: Sources) -> list[str]:
    """Return the checksum of each source.

    Raises:
        DataError: a file cannot be read.
    """
    return pool.map(_checksum, [(reader, source) for source in sources.files], "checksums", "files")


def _checksum(reader: Reader, source: Source) -> str:
    own = reader.checksum(source)
    return fingerprint_of([own, *map(checksum, source.also)]) if source.also else own


def read_sources(
    making: Building,
    pool: Pool,
    reader: Reader,
    sources: Sources,
    target: Target,
    part_rows: int,
    hold_out: HoldOut | None = None,
) -> list[SourceRecord]:
    """Read the sources of an artefact that were not yet read to their end, large files in ranges of lines.

    A source that cannot be read is reported at once, and ends the command when the others are read: they are kept, and
    nothing writes any more when it has ended.

    Returns:
        What each source, or range, gave, in their order.

    Raises:
        DataError: names all sources that cannot be read.
    """
    wanted = _divide(
        pool,
        [
            StagedSource(reader, sources.files[at], at, sources.names[at], making.folder, target, part_rows, hold_out)
            for at in sources.of(target)
        ],
    )
    todo = [staged for staged in wanted if not ((record := staged.record()) and record.is_complete(making.done))]
    if len(todo) < len(wanted):
        say(f"{len(wanted) - len(todo)} of {len(wanted)} pieces were read before; reading the other {len(todo)}")
    errors: list[str] = []
    num_rows, started = 0, time.monotonic()
    with progress_bar(f"reading the {target}", total=len(todo), unit="pieces") as bar:
        for report in pool.stream(_read_source, [(staged,) for staged in todo]):
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
    return [record for staged in wanted if (record := staged.record()) is not None]


def _divide(pool: Pool, staged: Sequence[StagedSource]) -> list[StagedSource]:
    """Count the lines of large files and divide them into ranges, where the format allows it."""
    files = [file for file in staged if file.source.divided]
    pieces = [(file, start) for file in files for start in piece_starts(file.source.path)]
    if not pieces:
        return list(staged)
    calls = [(file.source.path, start, file.source.divided) for file, start in pieces]
    counts: dict[int, list[list[int] | None]] = {}
    for (file, _), of_piece in zip(pieces, pool.map(count_lines, calls, "count lines"), strict=True):
        counts.setdefault(file.index, []).append(of_piece)
    divided = []
    for file in staged:
        of_file = divide_lines(counts.get(file.index, []), file.part_rows, file.source.divided)
        divided += [replace(file, source=replace(file.source, lines=at), piece=n) for n, at in enumerate(of_file)]
    return divided


def _read_source(staged: StagedSource) -> Iterator[int | str | None]:
    """Yield numbers of rows, then None at the end of the source, or the text of an error."""
    try:
        yield from stage_source(staged)
    except RaydrError as error:
        # Returned, not raised: the other sources continue.
        yield str(error)
    else:
        yield None


def nothing_usable(what: str, records: Sequence[SourceRecord], reader: Reader) -> DataError:
    """Return the error for sources without a usable row; mostly their columns have other names."""
    num_bad = sum(record.num_refused for record in records)
    examples = [row for record in records for row in record.examples][:5]
    shown = "".join(f"\n  {row}" for row in examples)
    bad_rows = f": {counted(num_bad, 'bad row')}, the first:{shown}\n" if examples else ". "
    columns = ", and columns, which says what they are called" if hasattr(reader, "columns") else ""
    return DataError(f"the sources hold not one usable {what}{bad_rows}Check data.reader: files and splits{columns}.")


def settle(
    making: Building,
    records: Sequence[SourceRecord],
    checks: Sequence[Finished],
    max_bad_rows: int,
    corpus: Artifact | None = None,
) -> int:
    """Record the parts of the checks; raise an error if corpus and sources have too many bad rows."""
    making.done.clear()
    for check in checks:
        making.done.update(check.parts)
    outcomes: list[SourceRecord | Finished] = [*records, *checks]
    num_bad = sum(outcome.num_bad for outcome in outcomes)
    examples = [row for outcome in outcomes if outcome.num_bad for row in outcome.examples]
    of_corpus = corpus.info["num_bad"] if corpus is not None else 0
    quarantines = [_write_quarantine(making.folder), str(corpus.folder / QUARANTINE) if corpus and of_corpus else ""]
    check_allowed(num_bad + of_corpus, examples, max_bad_rows, " and ".join(filter(None, quarantines)))
    making.folder.remove(STAGING)
    return num_bad


def _write_quarantine(folder: Folder) -> str:
    """Write the bad rows of all sources into a file; return its path, empty without bad rows."""
    names = [name for name in folder.files(STAGING) if name.endswith(".jsonl")]
    if not names:
        folder.remove(QUARANTINE)
        return ""
    with folder.publish(QUARANTINE) as path, open(path, "wb") as quarantine:
        for name in names:
            with folder.open(name) as file:
                shutil.copyfileobj(file, quarantine)
    return str(folder / QUARANTINE)


def left_out(num_bad: int) -> str:
    return f", {counted(num_bad, 'bad row')} left out (see {QUARANTINE})" if num_bad else ""
