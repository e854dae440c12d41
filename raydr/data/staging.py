"""Reading of a source into parts: rows are checked one by one, and written with their place.

A source is read once for the corpus and once for the data set, if it has rows for them. Passages go to their final
parts in the corpus. Queries, judgments and negatives are staged in the data set with the columns ``source`` and
``line``; the last step compares them with the passages and with each other. A record lists the parts of each source; it
is written last, and a resume relies on it.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from raydr.component import Config
from raydr.data.config import HoldOut
from raydr.data.readers.base import Reader, Row, Source, Target
from raydr.data.rows import BadRow, BadRows, content_id, fold
from raydr.data.tables import TableName, to_table, write_arrow
from raydr.store import Folder, Part
from raydr.store.building import write_and_record

STAGING = "staging"
#: Rows of a staged part of judgments or negatives.
_STAGED_ROWS = 100_000
_SPLIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SURROGATE = re.compile("[\ud800-\udfff]")
#: Columns of staged rows besides those of their table.
PLACE = (pa.field("source", pa.string(), nullable=False), pa.field("line", pa.int64(), nullable=False))


class SourceRecord(Config):
    """Result of reading a source into an artefact."""

    parts: dict[str, Part]
    num_bad: int
    """Bad rows that count for this artefact; a source that is read for two artefacts counts for one of them."""

    num_refused: int
    """All bad rows."""

    examples: list[BadRow]
    """First bad rows, for messages."""

    num_merged: int
    """Copies of passages within the source."""

    num_unused: int
    """Queries that belong to no split."""

    remarks: list[str] = []
    """Remarks on the source as a whole, for people."""

    def is_complete(self, done: Mapping[str, Part]) -> bool:
        return all(done.get(name) == part for name, part in self.parts.items())


@dataclass(frozen=True)
class StagedSource:
    """Source, or a range of its lines, to read into an artefact; picklable.

    Args:
        reader: reader of the format.
        source: source to read.
        index: place among the sources; part names and thus the order of rows follow it.
        name: short name for the column ``source``.
        folder: folder of the corpus or the data set.
        target: artefact of the folder.
        part_rows: passages of a part.
        hold_out: assignment of queries to held-out splits.
        piece: place of the range among the ranges of the source.
    """

    reader: Reader
    source: Source
    index: int
    name: str
    folder: Folder
    target: Target
    part_rows: int
    hold_out: HoldOut | None = None
    piece: int = 0

    @property
    def label(self) -> str:
        return f"{self.index:04d}-{self.piece:05d}"

    @property
    def record_name(self) -> str:
        return f"{STAGING}/source-{self.label}.json"

    def record(self) -> SourceRecord | None:
        """Return the record of a source that was read to its end; None if there is none."""
        if not self.folder.exists(self.record_name):
            return None
        return SourceRecord.model_validate(self.folder.read_json(self.record_name))


def stage_source(staged: StagedSource) -> Iterator[int]:
    """Read a source and write its parts of an artefact.

    Yields:
        Number of rows read since the last yield, for progress.

    Raises:
        DataError: the source cannot be read any further.
    """
    reader, source, folder = staged.reader, staged.source, staged.folder
    bad_rows, is_corpus = BadRows(source.path), staged.target == "corpus"
    # Copies in a source of passages alone are merged in the last steps of the corpus, without all ids in memory.
    checks = _Checks(bad_rows, reader.passages_repeat and not source.has_only_passages)
    writer = _Writer(staged)
    seen = reported = 0
    for row in reader.read(source, bad_rows):
        seen += 1
        if staged.hold_out is not None and row.table != "passages":
            row = staged.hold_out.moved(row)
        if checks.accept(row) and (row.table == "passages") == is_corpus and writer.add(row):
            yield seen - reported
            reported = seen
    writer.flush()
    # Bad rows of a source belong to the data set, unless it has only passages.
    owns_bad_rows = source.has_only_passages == is_corpus
    if owns_bad_rows:
        write_bad_rows(folder, staged.label, [bad_rows])
    record = SourceRecord(
        parts=writer.parts,
        num_bad=bad_rows.count if owns_bad_rows else 0,
        num_refused=bad_rows.count,
        examples=bad_rows.kept[:5],
        num_merged=checks.num_merged if is_corpus else 0,
        num_unused=0 if is_corpus else checks.num_unused,
        remarks=[] if is_corpus else bad_rows.remarks,
    )
    folder.write_json(staged.record_name, record.model_dump(mode="json"))
    yield seen - reported


@dataclass(frozen=True)
class Finished:
    """Result of a last step: parts, counts, and bad rows."""

    parts: dict[str, Part]
    counts: dict[str, int]
    num_bad: int
    examples: list[BadRow]


class _Checks:
    """Checks of a row by itself, or within its source."""

    def __init__(self, bad_rows: BadRows, passages_repeat: bool) -> None:
        self.bad_rows = bad_rows
        self.passages_repeat = passages_repeat
        self.num_merged = 0
        self.num_unused = 0
        self._contents: dict[str, tuple[str, int]] = {}

    def accept(self, row: Row) -> bool:
        values = row.values
        if row.table == "queries" and not row.split:
            self.num_unused += 1
            return False
        if row.table != "passages" and not _SPLIT.fullmatch(row.split):
            return self._refuse(row, f"{row.split!r} is no name for a split: expected letters, digits and . _ -")
        for key, value in values.items():
            texts = value if isinstance(value, list) else [value]
            if any(isinstance(text, str) and _SURROGATE.search(text) for text in texts):
                return self._refuse(row, f"{key!r} holds half of a surrogate pair, which is not valid Unicode")
            if key.endswith("_id") and not value:
                return self._refuse(row, f"empty {key}")
            if key == "partition" and not _SPLIT.fullmatch(value):
                return self._refuse(row, f"{value!r} is no name for a partition: expected letters, digits and . _ -")
        # A passage may have a title alone.
        if "text" in values and not (values["text"].strip() or values.get("title", "").strip()):
            what = "passage" if row.table == "passages" else "query"
            return self._refuse(row, f"empty text of {what} {values[f'{what}_id']!r}")
        return row.table != "passages" or not self.passages_repeat or self._is_new(row)

    def _is_new(self, row: Row) -> bool:
        passage_id = row.values["passage_id"]
        content = content_id(fold(f"{row.values['title']} {row.values['text']}"))
        first = self._contents.get(passage_id)
        if first is None:
            self._contents[passage_id] = (content, row.line)
            return True
        if first[0] != content:
            place = f"{self.bad_rows.file}:{first[1]}"
            return self._refuse(row, f"passage {passage_id!r} has another text than at {place}")
        self.num_merged += 1
        return False

    def _refuse(self, row: Row, reason: str) -> bool:
        self.bad_rows.add(row.line, reason, row.values)
        return False


class _Writer:
    """Writer that collects rows by table and split, and writes a part when there are enough.

    A part of a divisible source has the rows of a fixed number of lines, so that parts do not depend on the ranges.
    """

    def __init__(self, staged: StagedSource) -> None:
        self.staged = staged
        self.parts: dict[str, Part] = {}
        #: Rows by table, and by split, or partition for passages.
        self._rows: defaultdict[tuple[TableName, str], list[Row]] = defaultdict(list)
        self._chunks: defaultdict[tuple[TableName, str], int] = defaultdict(int)

    def add(self, row: Row) -> bool:
        """Collect a row, and write a part if there are enough; return True if a part was written."""
        group = row.values.get("partition", "") if row.table == "passages" else row.split
        rows = self._rows[row.table, group]
        if self.staged.source.divided:
            block = (row.line - 1) // self.staged.part_rows
            written = bool(rows) and block != self._chunks[row.table, group]
            if written:
                self._write(row.table, group)
            self._chunks[row.table, group] = block
            self._rows[row.table, group].append(row)
            return written
        rows.append(row)
        if len(rows) < (self.staged.part_rows if row.table == "passages" else _STAGED_ROWS):
            return False
        self._write(row.table, group)
        return True

    def flush(self) -> None:
        for table, group in list(self._rows):
            if self._rows[table, group]:
                self._write(table, group)

    def _write(self, table: TableName, group: str) -> None:
        rows = self._rows[table, group]
        part = f"part-{self.staged.index:04d}-{self._chunks[table, group]:05d}.arrow"
        # A reader of many files in a source sets the place of a passage itself.
        written = to_table(table, ({"source": self.staged.name, "line": row.line, **row.values} for row in rows))
        if table == "passages":
            name = "/".join(filter(None, ("passages", group, part)))
        else:
            name = f"{STAGING}/{table}/{group}/{part}"
            places = [self.staged.name] * len(rows), [row.line for row in rows]
            for field, values in zip(PLACE, places, strict=True):
                if field.name not in written.column_names:
                    written = written.append_column(field, pa.array(values, field.type))
        self.parts[name] = write_and_record(self.staged.folder, name, len(rows), partial(write_arrow, written))
        self._rows[table, group] = []
        self._chunks[table, group] += 1


def write_bad_rows(folder: Folder, what: str, reports: Collection[BadRows]) -> None:
    """Write bad rows as JSON lines, and the number of rows that were only counted; no file without bad rows."""
    name = f"{STAGING}/bad-{what}.jsonl"
    if not any(bad_rows.count for bad_rows in reports):
        folder.remove(name)
        return
    with folder.publish(name) as path, Path(path).open("w", encoding="utf-8") as file:
        for bad_rows in reports:
            rows = list(bad_rows.kept)
            if bad_rows.count > len(rows):
                reason = f"{bad_rows.count - len(rows)} more bad rows of this file were counted but not kept"
                rows.append(BadRow(bad_rows.file, 0, reason, ""))
            for row in rows:
                content = row.content.encode("utf-8", "replace").decode()
                record = {"file": row.file, "line": row.line, "reason": row.reason, "content": content}
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
