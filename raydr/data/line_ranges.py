"""Large text files in ranges of lines, so that many workers read one file.

Where a line starts, and which number it has, is known when the newlines before it are counted: the pieces of a file are
counted at the same time. A range begins at a multiple of some number of lines, whatever the number of ranges.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from raydr.store.filesystems import open_file, resolve_url

#: Bytes of a file that one task reads, about.
RANGE_BYTES = 256 * 2**20
#: Bytes after which the newlines so far are noted; a range begins to read at most so many bytes before its lines.
NOTED_BYTES = 4 * 2**20
#: A record that is one line: each field is quoted as a whole, or has no quote.
_FIELD = rb'(?:"[^"]*(?:""[^"]*)*"|[^"\t]*)'
_SINGLE_LINE = re.compile(_FIELD + rb"(?:\t" + _FIELD + rb")*\r?")


@dataclass(frozen=True)
class LineRange:
    """Consecutive lines of a text file.

    Args:
        byte: where reading begins, perhaps within a line.
        number: of that line, from 1.
        first: the first line that is wanted.
        end: the line after the last that is wanted; none is the last if 0.
    """

    byte: int
    number: int
    first: int
    end: int


ALL_LINES = LineRange(byte=0, number=1, first=1, end=0)


def piece_starts(path: str) -> list[int]:
    """Return where the pieces of a file start that are counted by a task each; none if it is read by one task."""
    if path.endswith(".gz"):
        return []
    filesystem, inner = resolve_url(path)
    size = int(filesystem.size(inner))
    return list(range(0, size, RANGE_BYTES)) if size > RANGE_BYTES else []


def count_lines(path: str, start: int, quoted: bool) -> list[int] | None:
    """Count the newlines of a piece of a file, :data:`NOTED_BYTES` at a time.

    Args:
        path: the file.
        start: where the piece starts.
        quoted: whether fields may be in quotes, and thus span lines.

    Returns:
        The counts; None if a record may span lines.
    """
    counts = []
    with open_file(path) as file:
        for at in range(start, start + RANGE_BYTES, NOTED_BYTES):
            file.seek(at)
            chunk = file.read(NOTED_BYTES)
            if not chunk:
                break
            counts.append(chunk.count(b"\n"))
            # The last line ends in the next chunk, which does not look at the rest of a line that it begins with.
            if quoted and (not at or b"\n" in chunk):
                whole = (chunk if not at else chunk.partition(b"\n")[2]) + file.readline()
                if not all(_SINGLE_LINE.fullmatch(line) for line in whole.split(b"\n") if b'"' in line):
                    return None
    return counts


def line_ranges(counts: Sequence[int], block: int) -> Iterator[LineRange]:
    """Divide a file into ranges of about as many lines each, as many ranges as its bytes need.

    Args:
        counts: newlines of consecutive pieces of :data:`NOTED_BYTES`.
        block: each range begins at a multiple of so many lines.

    >>> list(line_ranges([3, 3], block=2))
    [LineRange(byte=0, number=1, first=1, end=0)]
    """
    before = [0, *itertools.accumulate(counts)]
    num_ranges = -(-len(counts) * NOTED_BYTES // RANGE_BYTES)
    # The last line may have no newline.
    num_blocks = -(-(before[-1] + 1) // block)
    bounds = sorted({num_blocks * at // num_ranges for at in range(num_ranges + 1)})
    for start, stop in itertools.pairwise(bounds):
        first = start * block + 1
        # The line after the first newline from there on is the first that is known to be whole.
        piece = max((at for at, newlines in enumerate(before[:-1]) if newlines + 2 <= first), default=0)
        yield LineRange(piece * NOTED_BYTES, before[piece] + 1, first, stop * block + 1 if stop < num_blocks else 0)
