"""Artefacts of many parts: existing parts are kept, missing parts are made, written and recorded."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from raydr.console import progress_bar, say
from raydr.data.tables import write_arrow, write_parquet
from raydr.distributed.pool import SINGLE_CPU, Batch, Feed, Needs, Pool
from raydr.errors import ArtifactError
from raydr.store.artifact import Artifact
from raydr.store.building import Building, finished_parts, write_and_record
from raydr.store.folder import Folder
from raydr.store.identity import Part

T = TypeVar("T")
#: Function that makes and records parts: ``make(folder, name, *arguments)`` returns parts by name, ``name`` among them.
MakePart = Callable[..., Mapping[str, Part]]


def make_parts(
    making: Building,
    pool: Pool,
    make: MakePart,
    calls: Mapping[str, tuple[Any, ...]],
    description: str,
    needs: Needs = SINGLE_CPU,
) -> None:
    """Make the missing parts by calls of a function.

    Args:
        making: artefact to make; its ``done`` gets the new parts.
        pool: pool that runs the function.
        make: function that writes the part of a name, and perhaps others; see
            :func:`raydr.store.building.write_and_record`.
        calls: further arguments by the name of the part.
        description: label of the progress bar.
        needs: resources of a call.
    """
    todo = missing_parts(making, calls, description)
    if not todo:
        return
    work = [(making.folder, name, *arguments) for name, arguments in todo.items()]
    for made in pool.map(make, work, description, needs=needs):
        making.done.update(made)
    _check(making, todo)


def feed_parts(
    making: Building, pool: Pool, feed: Feed, items: Mapping[str, Mapping[str, Any]], description: str, unit: str
) -> list[dict[str, Any]]:
    """Make the missing parts by workers that hold a model.

    Args:
        making: artefact to make; its ``done`` gets the new parts.
        pool: pool that runs the workers.
        feed: workers; each call returns the :func:`part_batch` of its part, perhaps with further columns.
        items: inputs of a worker by the name of the part; their ``rows`` count for the progress bar.
        description: label of the progress bar.
        unit: unit of the rows.

    Returns:
        Row that the workers returned for each new part.
    """
    todo = missing_parts(making, items, description)
    if not todo:
        return []
    reports = []
    with progress_bar(description, total=sum(int(item["rows"]) for item in todo.values()), unit=unit) as bar:
        for row in pool.feed(feed, list(todo.values())):
            part = Part(rows=int(row["rows"]), bytes=int(row["bytes"]), checksum=str(row["checksum"]))
            # The worker has already recorded it on disk.
            making.done[str(row["name"])] = part
            reports.append(row)
            bar.advance(part.rows)
    _check(making, todo)
    return reports


def part_batch(name: str, part: Part, **more: Any) -> Batch:
    """Return a part as a batch of a single row, which :func:`feed_parts` expects from a worker."""
    row = {"name": name, "rows": part.rows, "bytes": part.bytes, "checksum": part.checksum, **more}
    return {column: [value] for column, value in row.items()}


def write_table(folder: Folder, name: str, table: pa.Table, counts: Mapping[str, int] | None = None) -> Part:
    """Write and record a table as a part, in the format of its suffix."""
    write = write_parquet if name.endswith(".parquet") else write_arrow
    return write_and_record(folder, name, table.num_rows, partial(write, table), counts)


def write_contents(folder: Folder, contents: Mapping[str, bytes | str]) -> dict[str, Part]:
    """Write and record parts other than tables, such as pages and pictures."""
    return {
        name: write_and_record(folder, name, 0, partial(_write_bytes, content)) for name, content in contents.items()
    }


def _write_bytes(content: bytes | str, path: str) -> None:
    Path(path).write_bytes(content.encode() if isinstance(content, str) else content)


def as_json(value: object) -> str:
    """Return the text of a JSON part."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def copy_part(folder: Folder, name: str, source: Artifact) -> dict[str, Part]:
    """Copy a part of another artefact."""

    def copy(path: str) -> None:
        shutil.copyfile(local, path)

    local = source.local(name)
    return {name: write_and_record(folder, name, source.manifest.parts[name].rows, copy)}


def scratch_parts(making: Building, name: str) -> Building:
    """Return a folder of intermediate parts; it is removed when the artefact is finished."""
    folder = making.folder / name
    making.scratch.append(folder)
    return Building(folder, making.identity, finished_parts(folder))


def total_counts(making: Building, names: Iterable[str]) -> Counter[str]:
    """Return the sums of the counts that were recorded with some parts, also in earlier attempts."""
    totals: Counter[str] = Counter()
    for name in names:
        totals.update(making.done[name].counts)
    return totals


def missing_parts(making: Building, items: Mapping[str, T], description: str) -> dict[str, T]:
    """Return the items whose parts are missing, by the name of the part; print the number of existing parts."""
    todo = {name: item for name, item in items.items() if name not in making.done}
    if len(todo) < len(items):
        say(f"{description}: {len(items) - len(todo)} of {len(items)} parts are there already, {len(todo)} to do")
    return todo


def _check(making: Building, todo: Iterable[str]) -> None:
    missing = [name for name in todo if name not in making.done]
    if missing:
        raise ArtifactError(f"{len(missing)} parts were not made, the first is {missing[0]}: run it again")


@dataclass(frozen=True)
class RowRange:
    """Consecutive rows of a part of the input.

    Args:
        part: name of the part.
        at: place of the part among the parts of the input.
        number: number of the range within the part.
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
        """Return the rows of the range from the part's table."""
        return table.slice(self.start, self.rows)


def row_ranges(sizes: Mapping[str, int], rows: int) -> list[RowRange]:
    """Return ranges of at most ``rows`` rows that cover the parts.

    >>> [(rows.part, rows.start, rows.stop) for rows in row_ranges({"a": 3, "b": 1}, 2)]
    [('a', 0, 2), ('a', 2, 3), ('b', 0, 1)]
    """
    return [
        RowRange(part, at, number, start, min(start + rows, size))
        for at, (part, size) in enumerate(sizes.items())
        for number, start in enumerate(range(0, size, rows))
    ]


def items_of(ranges: Mapping[str, RowRange]) -> dict[str, dict[str, Any]]:
    """Return the worker's item of each range, by the name of the part to write."""
    return {name: {"name": name, **vars(row_range), "rows": row_range.rows} for name, row_range in ranges.items()}


def range_items(under: str, sizes: Mapping[str, int], rows: int) -> dict[str, dict[str, Any]]:
    """Return the worker's item of each range of an input, by the name of the Parquet part to write.

    >>> list(range_items("scores/train/", {"a": 3}, 2))
    ['scores/train/part-00000-00000.parquet', 'scores/train/part-00000-00001.parquet']
    """
    ranges = row_ranges(sizes, rows)
    return items_of(
        {f"{under}part-{row_range.at:05d}-{row_range.number:05d}.parquet": row_range for row_range in ranges}
    )


def range_in(batch: Batch) -> RowRange:
    """Return the range of a worker's item."""
    place = {column: int(batch[column][0]) for column in ("at", "number", "start", "stop")}
    return RowRange(str(batch["part"][0]), **place)


def written(batch: Batch, output: Folder, table: pa.Table) -> Batch:
    """Write the part of a worker's item; return its batch."""
    name = str(batch["name"][0])
    return part_batch(name, write_table(output, name, table))
