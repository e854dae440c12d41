"""Ranges of a large file, which many workers read: lines of a text file, rows of a Parquet file.

Tasks first count the newlines in pieces of a text file, or read the numbers of rows in a Parquet file. That gives
place and number of each line. A range begins at a multiple of some number of lines, whatever the number of ranges.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from raydr.store.filesystems import open_file, resolve_url

#: Division of a file: none, by lines, by lines unless a field in quotes spans lines, or by rows of a Parquet file.
Division = Literal["", "lines", "quoted", "rows"]
#: Approximate bytes of a file that a task reads.
RANGE_BYTES = 256 * 2**20
#: Bytes per count of newlines; a range begins to read at most so many bytes before its lines.
NOTED_BYTES = 4 * 2**20
#: Pattern of a record in a single line: each field is quoted as a whole, or has no quote.
_FIELD = rb'(?:"[^"]*(?:""[^"]*)*"|[^"\t]*)'
_SINGLE_LINE = re.compile(_FIELD + rb"(?:\t" + _FIELD + rb")*\r?")


@dataclass(frozen=True)
class LineRange:
    """Consecutive lines of a text file, or rows of a Parquet file.

    Args:
        start: where reading begins: an offset, perhaps within a line, or a row group.
        number: number of the line there, from 1.
        first: first line of the range.
        end: line after the range; 0 for the end of the file.
    """

    start: int
    number: int
    first: int
    end: int


ALL_LINES = LineRange(start=0, number=1, first=1, end=0)


def piece_starts(path: str) -> list[int]:
    """Return the offsets of a file's pieces, each for a task that counts; empty if a single task reads the file."""
    if path.endswith(".gz"):
        return []
    filesystem, inner = resolve_url(path)
    size = int(filesystem.size(inner))
    return list(range(0, size, RANGE_BYTES)) if size > RANGE_BYTES else []


def count_lines(path: str, start: int, division: Division) -> list[int] | None:
    """Count the newlines of a piece of a file, :data:`NOTED_BYTES` at a time, or the rows of all row groups.

    Args:
        path: file to count.
        start: offset of the piece; the first gives the counts of a Parquet file.
        division: division of the file.

    Returns:
        Counts; None if a single task must read the file: a record may span lines, or the file is damaged.
    """
    if division == "rows":
        return _rows_of_groups(path) if not start else []
    counts = []
    with open_file(path) as file:
        for at in range(start, start + RANGE_BYTES, NOTED_BYTES):
            file.seek(at)
            chunk = file.read(NOTED_BYTES)
            if not chunk:
                break
            counts.append(chunk.count(b"\n"))
            # The last line ends in the next chunk, which skips the rest of the line that it begins in.
            if division == "quoted" and (not at or b"\n" in chunk):
                whole = (chunk if not at else chunk.partition(b"\n")[2]) + file.readline()
                if not all(_SINGLE_LINE.fullmatch(line) for line in whole.split(b"\n") if b'"' in line):
                    return None
    return counts


def _rows_of_groups(path: str) -> list[int] | None:
    with open_file(path) as file:
        try:
            metadata = pq.read_metadata(file)
        except (pa.ArrowException, OSError, ValueError):
            # The task that reads the file names the damage.
            return None
    return [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]


def divide_lines(pieces: Sequence[Sequence[int] | None], block: int, division: Division) -> list[LineRange]:
    """Divide a file into ranges with about equally many lines.

    Args:
        pieces: what :func:`count_lines` returned for each piece.
        block: number of lines; each range begins at a multiple of it.
        division: division of the file.

    Returns:
        At most a range for each piece; a single range if the file cannot be divided.

    >>> divide_lines([[3, 3], []], block=2, division="rows")
    [LineRange(start=0, number=1, first=1, end=5), LineRange(start=1, number=4, first=5, end=0)]
    """
    if not pieces or None in pieces:
        return [ALL_LINES]
    counts = [count for piece in pieces for count in piece or ()]
    before = [0, *itertools.accumulate(counts)]
    # The last line may have no newline.
    num_blocks = -(-(before[-1] + 1) // block)
    # A row group is read as a whole.
    num_ranges = max(min(len(pieces), len(counts)), 1)
    bounds = sorted({num_blocks * at // num_ranges for at in range(num_ranges + 1)})
    ranges = []
    for begin, stop in itertools.pairwise(bounds):
        first = begin * block + 1
        # A piece may begin within a line, so that its first whole line follows its first newline.
        at = max((at for at, newlines in enumerate(before[:-1]) if newlines + 2 <= first), default=0)
        start = at if division == "rows" else at * NOTED_BYTES
        ranges.append(LineRange(start, before[at] + 1, first, stop * block + 1 if stop < num_blocks else 0))
    return ranges
