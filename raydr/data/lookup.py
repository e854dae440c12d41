"""The last step of a corpus: duplicate passage ids are found exactly, and the lookup arrays are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydr.data.corpus import hash_content, hash_strings
from raydr.data.quarantine import BadRow, BadRows
from raydr.data.schema import read_arrow, write_arrow
from raydr.data.staging import write_bad_rows
from raydr.errors import DataError
from raydr.store.artifact import DONE, Part, write_and_record
from raydr.store.folder import Folder


@dataclass(frozen=True)
class Hashes:
    """Hashes of the passages of some parts: of their ids, and of their titles and texts."""

    ids: NDArray[np.uint64]
    contents: NDArray[np.uint64]


@dataclass(frozen=True)
class CorpusCheck:
    """What the last step found: the parts as they are now, and counts."""

    parts: dict[str, Part]
    num_passages: int
    num_merged: int
    num_bad: int
    examples: list[BadRow]


def hash_parts(folder: Folder, names: Sequence[str]) -> Hashes:
    """Hashes of the passages of some parts, one after the other."""
    ids, contents = [], []
    for name in names:
        table = read_arrow(folder.localize(name))
        ids.append(hash_strings(table.column("passage_id")))
        contents.append(hash_content(table.column("title"), table.column("text")))
    return Hashes(np.concatenate(ids), np.concatenate(contents))


def group_parts(parts: Mapping[str, Part], rows: int) -> list[list[str]]:
    """Names of consecutive parts, in groups of at least so many rows (the last may have fewer).

    >>> part = Part(rows=4, bytes=0, checksum="")
    >>> group_parts({"b": part, "a": part, "c": part}, rows=5)
    [['a', 'b'], ['c']]
    """
    groups: list[list[str]] = []
    room = 0
    for name in sorted(parts):
        if room <= 0:
            groups.append([])
            room = rows
        groups[-1].append(name)
        room -= parts[name].rows
    return groups


def finish_corpus(
    folder: Folder, parts: Mapping[str, Part], hashes: Sequence[Hashes], passages_repeat: bool, paths: Mapping[str, str]
) -> CorpusCheck:
    """Drop repeated passages from the parts and write the lookup arrays of those that stay.

    Of passages with the same id the first is kept. A copy is merged without a word where the reader expects
    copies, and a bad row otherwise; the same id with another text (case and white space aside) is a bad row.

    Args:
        folder: the corpus.
        parts: all passage parts, by name.
        hashes: their hashes, in the order of the names.
        passages_repeat: whether copies are expected.
        paths: full paths of the sources by their short names, for messages.

    Raises:
        DataError: there are no passages.
    """
    names = sorted(parts)
    starts = np.concatenate([[0], np.cumsum([parts[name].rows for name in names])]).astype(np.int64)
    if not starts[-1]:
        raise DataError("the sources hold not one usable passage. Check data.reader; bad rows are in the quarantine.")
    id_hash = np.concatenate([part.ids for part in hashes])
    content_hash = np.concatenate([part.contents for part in hashes])
    order = np.argsort(id_hash, kind="stable")
    reader = _Parts(folder, names, starts)
    repeats = _find_repeats(id_hash, order, reader)
    bad: dict[str, BadRows] = {}
    num_merged = 0
    for row, first in sorted(repeats.items()):
        same_text = bool(content_hash[row] == content_hash[first])
        if same_text and passages_repeat:
            num_merged += 1
            continue
        passage_id, source, line = reader.place(row)
        _, first_source, first_line = reader.place(first)
        where = f"{paths.get(first_source, first_source)}:{first_line}"
        reason = f"duplicate passage id {passage_id!r}, first at {where}" + ("" if same_text else " with another text")
        path = paths.get(source, source)
        bad.setdefault(path, BadRows(path)).add(line, reason, reader.text(row))
    write_bad_rows(folder, "duplicates", list(bad.values()))

    keep = np.ones(len(id_hash), dtype=np.bool_)
    keep[list(repeats)] = False
    kept_parts = _drop_rows(folder, dict(parts), names, starts, keep)
    new_row = np.cumsum(keep) - 1
    order = order[keep[order]]
    arrays = {"id_hash": id_hash[order], "row": new_row[order].astype(np.int64), "content_hash": content_hash[keep]}
    for name, array in arrays.items():
        path = f"lookup/{name}.npy"
        kept_parts[path] = write_and_record(folder, path, len(array), partial(_save, array))
    return CorpusCheck(
        parts=kept_parts,
        num_passages=int(keep.sum()),
        num_merged=num_merged,
        num_bad=sum(bad_rows.count for bad_rows in bad.values()),
        examples=[row for bad_rows in bad.values() for row in bad_rows.kept[:5]][:5],
    )


def _find_repeats(id_hash: NDArray[np.uint64], order: NDArray[np.int64], parts: _Parts) -> dict[int, int]:
    """The rows whose id stood in an earlier row, and that row. Equal hashes are compared by the ids themselves."""
    ordered = id_hash[order]
    equal = np.concatenate([[False], ordered[1:] == ordered[:-1]])
    repeats: dict[int, int] = {}
    first_of: dict[str, int] = {}
    group_hash: np.uint64 | None = None
    for at in np.flatnonzero(equal):
        if ordered[at] != group_hash:
            group_hash = ordered[at]
            before = int(order[at - 1])
            first_of = {parts.place(before)[0]: before}
        row = int(order[at])
        first = first_of.setdefault(parts.place(row)[0], row)
        if first != row:
            repeats[row] = first
    return repeats


class _Parts:
    """Single rows of the passage parts, memory-mapped."""

    def __init__(self, folder: Folder, names: Sequence[str], starts: NDArray[np.int64]) -> None:
        self.folder = folder
        self.names = names
        self.starts = starts
        self._tables: dict[int, pa.Table] = {}

    def place(self, row: int) -> tuple[str, str, int]:
        """Passage id, source and line."""
        table, at = self._find(row)
        return table["passage_id"][at].as_py(), table["source"][at].as_py(), table["line"][at].as_py()

    def text(self, row: int) -> str:
        table, at = self._find(row)
        return str(table["text"][at].as_py())

    def _find(self, row: int) -> tuple[pa.Table, int]:
        part = int(np.searchsorted(self.starts, row, side="right")) - 1
        if part not in self._tables:
            self._tables[part] = read_arrow(self.folder.localize(self.names[part]))
        return self._tables[part], row - int(self.starts[part])


def _drop_rows(
    folder: Folder, parts: dict[str, Part], names: Sequence[str], starts: NDArray[np.int64], keep: NDArray[np.bool_]
) -> dict[str, Part]:
    for at, name in enumerate(names):
        mask = keep[starts[at] : starts[at + 1]]
        if mask.all():
            continue
        if mask.any():
            table = read_arrow(folder.localize(name)).filter(pa.array(mask))
            parts[name] = write_and_record(folder, name, len(table), partial(write_arrow, table))
        else:
            folder.remove(f"{DONE}/{name.replace('/', '%')}.json")
            folder.remove(name)
            del parts[name]
    return parts


def _save(array: NDArray[np.generic], path: str) -> None:
    with open(path, "wb") as file:
        np.save(file, array, allow_pickle=False)
