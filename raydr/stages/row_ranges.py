"""Work cut into ranges of rows of the input's parts, each of which becomes one part.

Ranges have about the same number of rows, so that memory is bounded and small inputs of few parts still keep several
workers busy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from raydr.stages.parts import part_batch, write_table
from raydr.stages.pool import Batch
from raydr.store.folder import Folder


@dataclass(frozen=True)
class RowRange:
    """Consecutive rows of one part of the input.

    Args:
        part: the name of that part.
        at: its place among the parts of the input.
        number: of the range within the part.
        start, stop: first row, and the row after the last.
    """

    part: str
    at: int
    number: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start

    def of(self, table: pa.Table) -> pa.Table:
        """These rows of the part's table."""
        return table.slice(self.start, self.rows)


def row_ranges(sizes: Mapping[str, int], rows: int) -> list[RowRange]:
    """Parts in ranges of at most ``rows`` rows.

    >>> [(one.part, one.start, one.stop) for one in row_ranges({"a": 3, "b": 1}, 2)]
    [('a', 0, 2), ('a', 2, 3), ('b', 0, 1)]
    """
    return [
        RowRange(part, at, number, start, min(start + rows, size))
        for at, (part, size) in enumerate(sizes.items())
        for number, start in enumerate(range(0, size, rows))
    ]


def items_of(ranges: Mapping[str, RowRange]) -> dict[str, dict[str, Any]]:
    """What workers are told of ranges, by the name of the part that each becomes."""
    return {name: {"name": name, **vars(one), "rows": one.rows} for name, one in ranges.items()}


def range_items(under: str, sizes: Mapping[str, int], rows: int) -> dict[str, dict[str, Any]]:
    """What workers are told of the ranges of an input's parts, each of which becomes a Parquet part.

    >>> list(range_items("scores/train/", {"a": 3}, 2))
    ['scores/train/part-00000-00000.parquet', 'scores/train/part-00000-00001.parquet']
    """
    ranges = row_ranges(sizes, rows)
    return items_of({f"{under}part-{one.at:05d}-{one.number:05d}.parquet": one for one in ranges})


def range_in(batch: Batch) -> RowRange:
    """The range that a worker is told of."""
    place = {column: int(batch[column][0]) for column in ("at", "number", "start", "stop")}
    return RowRange(str(batch["part"][0]), **place)


def written(batch: Batch, output: Folder, table: pa.Table) -> Batch:
    """Write the part that a worker is told to make, and say so: what it returns."""
    name = str(batch["name"][0])
    return part_batch(name, write_table(output, name, table))
