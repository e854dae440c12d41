"""Last steps of a corpus: repeated passages are dropped, and the lookup is written.

Rows are numbered through the parts in their order. Tasks hash groups of consecutive parts, then compare ranges of
hashes: equal ids have equal hashes, so each range has all copies of its ids. Then each group drops its repeats, and
each range writes its lookup. Every step may be repeated after an interruption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydr.data.corpus import hash_content, hash_strings, range_of
from raydr.data.parts import RowParts
from raydr.data.rows import Quarantine
from raydr.data.staging import STAGING, Finished, write_bad_rows
from raydr.data.tables import read_arrow, write_arrow
from raydr.store import Folder, Part
from raydr.store.building import forget_part, write_and_record
from raydr.store.folder import side_by_side

#: A hashed row: hash of its id, its number before repeats are dropped, hash of its content.
_HASHED = np.dtype([("id_hash", "<u8"), ("row", "<i8"), ("content_hash", "<u8")])
#: Rows that repeat an id, the first row with this id, and whether their contents are equal.
_REPEATS = pa.schema([("row", pa.int64()), ("first", pa.int64()), ("same", pa.bool_())])
#: Approximate rows of a range of hashes; comparing them takes some 100 bytes a row.
RANGE_ROWS = 4_000_000


@dataclass(frozen=True)
class Group:
    """Consecutive parts, finished by a single task."""

    number: int
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    #: Number of its first row.
    start: int

    @property
    def rows(self) -> int:
        return sum(self.sizes)

    @property
    def hashes(self) -> str:
        return f"{STAGING}/hashes-{self.number:05d}.bin"


@dataclass(frozen=True)
class Unfinished:
    """Corpus before its last steps; picklable.

    Args:
        folder: folder of the corpus.
        groups: groups of all its parts.
        num_ranges: number of ranges of hashes, a power of two.
    """

    folder: Folder
    groups: tuple[Group, ...]
    num_ranges: int

    @classmethod
    def of(cls, folder: Folder, parts: Mapping[str, Part], group_rows: int, range_rows: int = RANGE_ROWS) -> Unfinished:
        """Group parts, with at least ``group_rows`` rows a group; the last may have fewer."""
        groups: list[Group] = []
        names: list[str] = []
        start = 0
        ordered = sorted(parts)
        for name in ordered:
            names.append(name)
            sizes = tuple(parts[member].rows for member in names)
            if sum(sizes) >= group_rows or name == ordered[-1]:
                groups.append(Group(len(groups), tuple(names), sizes, start))
                start, names = start + sum(sizes), []
        return cls(folder, tuple(groups), 1 << max(0, (start - 1) // range_rows).bit_length())

    def passages(self) -> RowParts:
        """Return the rows of all parts, repeats included."""
        names = [name for group in self.groups for name in group.names]
        sizes = [size for group in self.groups for size in group.sizes]
        return RowParts(names, sizes, self.folder.localize)


def hash_group(folder: Folder, group: Group, num_ranges: int) -> list[int]:
    """Write the sorted hashes of a group's passages; return the start of each range among them, and their number."""
    hashed = np.empty(group.rows, dtype=_HASHED)
    hashed["row"] = np.arange(group.start, group.start + group.rows)
    ids, contents = [], []
    for name in group.names:
        table = read_arrow(folder.localize(name))
        ids.append(hash_strings(table["passage_id"]))
        contents.append(hash_content(table["title"], table["text"]))
    hashed["id_hash"], hashed["content_hash"] = np.concatenate(ids), np.concatenate(contents)
    hashed = hashed[np.argsort(hashed["id_hash"], kind="stable")]
    with folder.publish(group.hashes) as path:
        hashed.tofile(path)
    ranges = range_of(hashed["id_hash"], num_ranges)
    return [int(at) for at in np.searchsorted(ranges, np.arange(num_ranges + 1))]


def _read_range(corpus: Unfinished, bounds: Sequence[tuple[int, int]]) -> NDArray[np.void]:
    """Return the rows of a range of hashes, sorted by hash and then by row.

    Args:
        corpus: corpus whose hashes are written.
        bounds: first and end of the range in each group.
    """
    size = _HASHED.itemsize
    reads = [(group.hashes, *at) for group, at in zip(corpus.groups, bounds, strict=True) if at[0] < at[1]]
    pieces = side_by_side(lambda at: corpus.folder.read_bytes(at[0], at[1] * size, at[2] * size), reads)
    rows = np.frombuffer(b"".join(pieces), dtype=_HASHED)
    return rows[np.argsort(rows["id_hash"], kind="stable")]


def find_repeats(corpus: Unfinished, number: int, bounds: Sequence[tuple[int, int]]) -> str:
    """Write the rows of a range that repeat an id; return the name of the file, empty if there are none.

    Rows with equal hashes are compared by their ids.
    """
    rows = _read_range(corpus, bounds)
    id_hash = rows["id_hash"]
    equal = np.concatenate([[False], id_hash[1:] == id_hash[:-1]])
    doubtful = np.flatnonzero(equal | np.append(equal[1:], False))
    ids = corpus.passages().column("passage_id", rows["row"][doubtful])
    firsts: dict[str, int] = {}
    repeats = []
    for at, passage_id in zip(doubtful.tolist(), ids, strict=True):
        first = firsts.setdefault(passage_id, at)
        if first != at:
            same = bool(rows["content_hash"][at] == rows["content_hash"][first])
            repeats.append((int(rows["row"][at]), int(rows["row"][first]), same))
    if not repeats:
        return ""
    name = f"{STAGING}/repeats-{number:05d}.arrow"
    table = pa.table([pa.array(column) for column in zip(*repeats, strict=True)], schema=_REPEATS)
    with corpus.folder.publish(name) as path:
        write_arrow(table, path)
    return name


def _read_repeats(folder: Folder, names: Sequence[str]) -> pa.Table:
    """Return all repeats, sorted by row."""
    tables = side_by_side(lambda name: read_arrow(folder.localize(name)), names)
    return pa.concat_tables([_REPEATS.empty_table(), *tables]).sort_by("row")


def report_repeats(
    corpus: Unfinished, repeats_files: Sequence[str], passages_repeat: bool, paths: Mapping[str, str]
) -> Finished:
    """Record repeats as bad rows, or count them as merged.

    The first passage with an id is kept. A copy is merged if the reader expects copies, and is a bad row otherwise; the
    same id with another text (case and white space aside) is always a bad row.

    Args:
        corpus: corpus with repeats.
        repeats_files: files of :func:`find_repeats`.
        passages_repeat: whether the reader expects copies.
        paths: full paths of the sources by their short names, for messages.
    """
    repeats, passages, bad = _read_repeats(corpus.folder, repeats_files), corpus.passages(), Quarantine()
    num_merged = 0
    for row, first, same in zip(*(column.to_pylist() for column in repeats.columns), strict=True):
        if same and passages_repeat:
            num_merged += 1
            continue
        repeated, kept = passages.row(row), passages.row(first)
        where = f"{paths.get(kept['source'], kept['source'])}:{kept['line']}"
        reason = f"duplicate passage id {kept['passage_id']!r}, first at {where}"
        if not same:
            reason += " with another text"
        bad.add(paths.get(repeated["source"], repeated["source"]), repeated["line"], reason, repeated["text"])
    write_bad_rows(corpus.folder, "duplicates", bad.files.values())
    num_passages = sum(group.rows for group in corpus.groups) - len(repeats)
    return Finished({}, {"passages": num_passages, "merged": num_merged}, bad.count, bad.examples)


def drop_repeats(folder: Folder, group: Group, repeats_files: Sequence[str]) -> dict[str, Part | None]:
    """Drop repeated passages from a group's parts, and write ids and content hashes of the others, by row.

    Returns:
        Written parts by name; None for a part without rows left.
    """
    repeats = np.asarray(_read_repeats(folder, repeats_files)["row"].to_numpy()) - group.start
    keep = np.ones(group.rows, dtype=np.bool_)
    keep[repeats[(repeats >= 0) & (repeats < group.rows)]] = False
    written: dict[str, Part | None] = {}
    ids = []
    for name, mask in zip(group.names, np.split(keep, np.cumsum(group.sizes)[:-1]), strict=True):
        if not mask.any():
            forget_part(folder, name)
            written[name] = None
            continue
        table = read_arrow(folder.localize(name))
        # An interrupted task may have dropped the repeats already.
        if len(table) == len(mask) and not mask.all():
            table = table.filter(pa.array(mask))
        if not mask.all():
            written[name] = write_and_record(folder, name, len(table), partial(write_arrow, table))
        ids.append(table["passage_id"])
    hashed = np.fromfile(folder.localize(group.hashes), dtype=_HASHED)
    contents = hashed["content_hash"][np.argsort(hashed["row"])][keep]
    column = pa.chunked_array([chunk for part in ids for chunk in part.chunks], pa.string())
    by_row = pa.table({"passage_id": column, "content_hash": contents})
    name = f"lookup/rows/part-{group.number:05d}.arrow"
    written[name] = write_and_record(folder, name, len(by_row), partial(write_arrow, by_row))
    return written


def write_hashes(
    corpus: Unfinished, number: int, bounds: Sequence[tuple[int, int]], repeats_files: Sequence[str]
) -> dict[str, Part | None]:
    """Write the sorted id hashes of a range, with row numbers after repeats are dropped."""
    rows = _read_range(corpus, bounds)
    dropped = np.asarray(_read_repeats(corpus.folder, repeats_files)["row"].to_numpy())
    rows = rows[~np.isin(rows["row"], dropped)]
    table = pa.table({"id_hash": rows["id_hash"], "row": rows["row"] - np.searchsorted(dropped, rows["row"])})
    name = f"lookup/hashes/part-{number:05d}.arrow"
    return {name: write_and_record(corpus.folder, name, len(table), partial(write_arrow, table))}
