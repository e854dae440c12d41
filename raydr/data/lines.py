"""Text files read line by line, plain or gzipped, from any fsspec path, with line numbers.

A line that is not UTF-8, not JSON or has the wrong number of columns is a bad row with its line number; a file
that is empty, missing or damaged as a whole is an error.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, cast

import fsspec

from raydr.data.quarantine import BadRows
from raydr.errors import DataError

_CHUNK = 1 << 18
#: Characters of a quoted field, at most.
_LONGEST_FIELD = 1 << 26
_BOM = b"\xef\xbb\xbf"


@contextmanager
def open_chunks(path: str) -> Iterator[Callable[[], bytes]]:
    """A function that returns the next bytes of a file, decompressed if its name ends in ``.gz``.

    Raises:
        DataError: the file is not there or cannot be read.
    """
    try:
        with fsspec.open(path, "rb") as opened:
            raw = cast(IO[bytes], opened)
            if path.endswith(".gz"):
                with gzip.GzipFile(fileobj=raw) as unzipped:
                    # read1 hands out what is decompressed so far, so that nothing before a damage is lost.
                    yield partial(unzipped.read1, _CHUNK)
            else:
                yield partial(raw.read, _CHUNK)
    except FileNotFoundError:
        raise DataError(f"there is no file {path}. Check the paths of data.reader.") from None


def read_lines(path: str, bad_rows: BadRows) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, from 1, without line ends.

    Raises:
        DataError: the file is empty, or a ``.gz`` that is truncated or damaged; names the last good line.
    """
    number, tail = 0, b""
    with open_chunks(path) as next_chunk:
        try:
            while chunk := next_chunk():
                pieces = (tail + chunk).split(b"\n")
                tail = pieces.pop()
                for piece in pieces:
                    number += 1
                    line = _decode(piece, number, bad_rows)
                    if line is not None:
                        yield number, line
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(
                f"{path} is truncated or damaged ({error}): the last line that can be read is {number}. "
                "Fetch or compress the file again."
            ) from None
    if tail:
        number += 1
        line = _decode(tail, number, bad_rows)
        if line is not None:
            yield number, line
    if number == 0:
        raise DataError(f"{path} is empty: expected at least one line. Fetch the file again, or leave it out.")


def _decode(raw: bytes, number: int, bad_rows: BadRows) -> str | None:
    if number == 1:
        raw = raw.removeprefix(_BOM)
    try:
        return raw.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        bad_rows.add(number, f"not valid UTF-8 at byte {error.start} of the line", raw.decode("utf-8", "replace"))
        return None


def read_json_lines(path: str, bad_rows: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
    """One JSON object a line; blank lines are skipped. Raises like :func:`read_lines`."""
    for number, line in read_lines(path, bad_rows):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            bad_rows.add(number, f"broken JSON: {error}", line)
            continue
        if isinstance(record, dict):
            yield number, record
        else:
            bad_rows.add(number, f"expected a JSON object, found {type(record).__name__}", line)


def read_tsv(
    path: str, columns: tuple[str, ...], bad_rows: BadRows, quoted: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Tab-separated lines with exactly the given columns; blank lines are skipped. Raises like :func:`read_lines`.

    Args:
        path: the file.
        columns: what the columns are called, for messages; their number is checked.
        bad_rows: receives the lines with another number of columns.
        quoted: fields may be in double quotes, as in DPR's files, and then span lines.
    """
    if quoted:
        records = _csv_records(path, "\t", bad_rows)
    else:
        records = ((number, line.split("\t")) for number, line in read_lines(path, bad_rows) if line.strip())
    for number, fields in records:
        if len(fields) == len(columns):
            yield number, fields
        else:
            bad_rows.add(number, _wrong_count(columns, fields), "\t".join(fields))


def read_csv(path: str, delimiter: str, bad_rows: BadRows) -> Iterator[tuple[int, dict[str, str]]]:
    """Records of a CSV file with a header, by column name; quoted fields may span lines.

    The number of a record is the line it starts on. Raises like :func:`read_lines`, and DataError if the header
    names a column twice.
    """
    header: list[str] | None = None
    for number, fields in _csv_records(path, delimiter, bad_rows):
        if header is None:
            header = fields
            if len(set(header)) != len(header):
                raise DataError(f"{path}:{number}: the header names a column twice: {', '.join(header)}. Rename one.")
        elif len(fields) == len(header):
            yield number, dict(zip(header, fields, strict=True))
        else:
            bad_rows.add(number, _wrong_count(header, fields), fields)


def _wrong_count(columns: Sequence[str], fields: Sequence[str]) -> str:
    return f"expected {len(columns)} columns ({', '.join(columns)}), found {len(fields)}"


def _csv_records(path: str, delimiter: str, bad_rows: BadRows) -> Iterator[tuple[int, list[str]]]:
    """Records with the line each starts on; blank lines are skipped."""
    current = 0
    #: The lines of the record being read.
    taken: list[str] = []

    def physical_lines() -> Iterator[str]:
        nonlocal current
        for number, line in read_lines(path, bad_rows):
            current = number
            taken.append(line)
            yield line + "\n"

    # A passage may be longer than the 131,072 characters that the module allows by itself.
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
            # Each line that the open quote has swallowed is a row that is missing.
            for number, line in zip(range(start, current + 1), taken[-(current - start + 1) :], strict=True):
                bad_rows.add(number, f"broken quoting, found in line {current}: {error}", line)
            continue
        finally:
            taken.clear()
        if fields and any(field.strip() for field in fields):
            yield current - (reader.line_num - consumed) + 1, fields
