"""Text files read line by line, plain or gzipped, from any fsspec path, with line numbers.

A line that is not UTF-8, not JSON or has the wrong number of columns is a bad row with its line number; a file
that is empty, missing or damaged as a whole is an error.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, cast

from raydr.data.ranges import ALL_LINES, LineRange
from raydr.data.rows import BadRows, is_blank
from raydr.errors import DataError
from raydr.store.filesystems import open_file

#: Bytes per read.
CHUNK = 1 << 18
#: Maximum of characters of a quoted field.
_LONGEST_FIELD = 1 << 26
_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
#: First bytes of formats that are mistaken for text, the format, and the remedy.
_OTHER = (
    (b"\xff\xfe\x00\x00", "UTF-32", "iconv -f UTF-32 -t UTF-8 {path}"),
    (b"\xff\xfe", "UTF-16", "iconv -f UTF-16 -t UTF-8 {path}"),
    (b"\xfe\xff", "UTF-16", "iconv -f UTF-16 -t UTF-8 {path}"),
    (_GZIP, "compressed by gzip", "name it {path}.gz"),
    (b"BZh", "compressed by bzip2", "unpack it, or compress it by gzip"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "unpack it, or compress it by gzip"),
    (b"PK\x03\x04", "a ZIP archive (as Excel's files are)", "unpack it, or save it as CSV in UTF-8"),
    (b"PAR1", "Parquet", "let its name end in .parquet"),
)
_LOOKED_AT = 200
#: First bytes of a file that ``git clone`` writes in place of a large file, if Git LFS is not installed.
_POINTER = b"version https://git-lfs"


@contextmanager
def open_text(path: str, start: int = 0) -> Iterator[gzip.GzipFile | io.BufferedReader[io.RawIOBase]]:
    """Open a file of UTF-8 text for reading bytes, decompressed if its name ends in ``.gz``.

    Args:
        path: file to open.
        start: first byte; 0 for a compressed file.

    Raises:
        DataError: the file does not exist, or its first bytes are those of another format or encoding.
    """
    is_gzip = path.endswith(".gz")
    try:
        with open_file(path) as raw:
            refuse_pointer(path, raw)
            mark = raw.read(len(_GZIP))
            raw.seek(start)
            if is_gzip and mark and mark != _GZIP:
                raise DataError(f"{path} is not compressed, as its name says: name it {path.removesuffix('.gz')}.")
            # Both yield the bytes before damage.
            with gzip.GzipFile(fileobj=raw) if is_gzip else io.BufferedReader(cast(io.RawIOBase, raw), CHUNK) as stream:
                if not start:
                    _check_encoding(path, stream.peek(_LOOKED_AT)[:_LOOKED_AT])
                yield stream
    except FileNotFoundError:
        raise DataError(f"there is no file {path}. Check the paths of data.reader.") from None


def refuse_pointer(path: str, file: IO[bytes]) -> None:
    """Check that an open file is not a pointer of Git LFS, and go back to its start.

    Raises:
        DataError: the file is a pointer.
    """
    start = file.read(len(_POINTER))
    file.seek(0)
    if start == _POINTER:
        raise DataError(f"{path} is a pointer of Git LFS to a file that is not here. Fetch it: git lfs pull")


def _check_encoding(path: str, start: bytes) -> None:
    for mark, name, remedy in _OTHER:
        if start.startswith(mark):
            raise DataError(f"{path} is {name} and not text in UTF-8: {remedy.format(path=path)}.")
    # Every other byte of Latin text in UTF-16 is zero, and no byte of text in UTF-8 is.
    if start.count(0) * 4 > len(start):
        raise DataError(f"{path} looks like UTF-16 without a byte order mark and not like UTF-8: save it as UTF-8.")


def read_lines(
    path: str, bad_rows: BadRows, lines: LineRange = ALL_LINES, with_ends: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield the lines of a range with their numbers, from 1, without line ends if not ``with_ends``.

    Raises:
        DataError: the file is empty, or a truncated or damaged ``.gz``; the message has the last good line.
    """
    number = lines.number - 1
    try:
        with open_text(path, lines.start) as stream:
            for number, raw in enumerate(stream, start=lines.number):
                if number < lines.first:
                    continue
                if number == lines.end:
                    return
                content = raw if with_ends else raw.removesuffix(b"\n").removesuffix(b"\r")
                try:
                    line = (content.removeprefix(_BOM) if number == 1 else content).decode("utf-8")
                except UnicodeDecodeError as error:
                    reason = f"not valid UTF-8 at byte {error.start} of the line"
                    bad_rows.add(number, reason, content.decode("utf-8", "replace"))
                    continue
                yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path} is truncated or damaged ({error}): the last line that can be read is {number}. "
            "Fetch or compress the file again."
        ) from None
    if number == 0:
        raise DataError(f"{path} is empty: expected at least one line. Fetch the file again, or leave it out.")


def read_json_lines(path: str, bad_rows: BadRows, lines: LineRange = ALL_LINES) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the JSON object of each line, with the line's number; blank lines are skipped.

    Raises:
        DataError: the file is empty or damaged, or holds a JSON array.
    """
    filled = ((number, line) for number, line in read_lines(path, bad_rows, lines) if not is_blank(line))
    for place, (number, line) in enumerate(filled, start=lines.first):
        record, problem = None, ""
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            problem = f"broken JSON: {error}"
        holds_objects = isinstance(record, list) and bool(record) and isinstance(record[0], dict)
        if place == 1 and line.lstrip().startswith("[") and (problem or holds_objects):
            raise DataError(
                f"{path}:{number}: a JSON array begins; expected a JSON object on each line: write one object a line "
                "(jq -c '.[]' does that); the reader pairs also takes arrays, from files whose names end in .json."
            )
        if isinstance(record, dict):
            yield number, record
        else:
            problem = problem or f"expected a JSON object, found {type(record).__name__}"
            bad_rows.add(number, problem, line)


def read_tsv(
    path: str, columns: tuple[str, ...], bad_rows: BadRows, quoted: bool = False, lines: LineRange = ALL_LINES
) -> Iterator[tuple[int, list[str]]]:
    """Yield the fields of tab-separated lines with their numbers; blank lines and a header are skipped.

    Raises like :func:`read_lines`.

    Args:
        path: file to read.
        columns: names of the columns, for the header and messages; their number is checked.
        bad_rows: collector of the lines with another number of columns.
        quoted: whether fields may be in double quotes, as in DPR's files, and then span lines.
        lines: range to read; no record spans two ranges.
    """
    if quoted:
        records = _csv_records(path, "\t", bad_rows, lines)
    else:
        unquoted = read_lines(path, bad_rows, lines)
        records = ((number, line.split("\t")) for number, line in unquoted if not is_blank(line))
    for number, fields in records:
        if len(fields) != len(columns):
            bad_rows.add(number, wrong_count(columns, fields), "\t".join(fields))
        elif number > 1 or tuple(fields) != columns:
            yield number, fields


def read_csv(path: str, delimiter: str, bad_rows: BadRows) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield records of a CSV file with a header, by column name; quoted fields may span lines.

    The number of a record is the line it starts on. Raises like :func:`read_lines`, and DataError if the header
    cannot be read or names a column twice.
    """
    header: list[str] | None = None
    before = bad_rows.count
    for number, fields in _csv_records(path, delimiter, bad_rows):
        if header is None:
            if bad_rows.count > before:
                break
            header = fields
            if len(set(header)) != len(header):
                raise DataError(f"{path}:{number}: the header names a column twice: {', '.join(header)}. Rename one.")
            other = next((mark for mark in ";\t|," if len(header) == 1 and mark in header[0]), "")
            if other:
                raise DataError(
                    f"{path}:{number}: the header {header[0]!r} is one column between {delimiter!r}, and has {other!r} "
                    "in it: write the file with commas and the end .csv, or with tabs and the end .tsv."
                )
        elif len(fields) == len(header):
            yield number, dict(zip(header, fields, strict=True))
        else:
            bad_rows.add(number, wrong_count(header, fields), fields)
    if header is None and bad_rows.count > before:
        # Otherwise the next row would give the names of the columns.
        raise DataError(
            f"{bad_rows.kept[-1]}: the header, which names the columns. Write the file in UTF-8, with commas and the "
            "end .csv, or with tabs and the end .tsv."
        )


def wrong_count(columns: Sequence[str], fields: Sequence[str]) -> str:
    """Return the reason that refuses a record with another number of fields than columns."""
    return f"expected {len(columns)} columns ({', '.join(columns)}), found {len(fields)}"


def _csv_records(
    path: str, delimiter: str, bad_rows: BadRows, lines: LineRange = ALL_LINES
) -> Iterator[tuple[int, list[str]]]:
    """Yield records with the line on which each starts; blank lines are skipped."""
    current = 0
    #: Lines of the current record.
    taken: list[str] = []

    def physical_lines() -> Iterator[str]:
        nonlocal current
        # The ends of lines inside of a quoted text are part of it.
        for number, line in read_lines(path, bad_rows, lines, with_ends=True):
            current = number
            taken.append(line.rstrip("\r\n"))
            yield line

    # A passage may be longer than the module's default limit of 131,072 characters.
    csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.reader(physical_lines(), delimiter=delimiter, strict=True)
    while True:
        consumed = reader.line_num
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            start = current - (reader.line_num - consumed) + 1
            # Each line inside the open quote is a lost row.
            for number, line in zip(range(start, current + 1), taken[-(current - start + 1) :], strict=True):
                bad_rows.add(number, f"broken quoting, found in line {current}: {error}", line)
            continue
        finally:
            lines_of_record = list(taken)
            taken.clear()
        start = current - (reader.line_num - consumed) + 1
        if delimiter == "\t" and len(lines_of_record) > 1 and any("\t" in field for field in fields):
            # A quote that begins a text and a quote in a later row enclose all rows between.
            for number, line in enumerate(lines_of_record, start=start):
                bad_rows.add(number, f"a quoted text from line {start} to {current} has tabs in it, as rows have", line)
        elif not all(map(is_blank, fields)):
            yield start, fields
