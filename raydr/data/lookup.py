"""The last step of a corpus: duplicate passage ids are found exactly, and the lookup arrays are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydr.data.corpus import hash_content, hash_strings
from raydr.data.opened import RowParts
from raydr.data.quarantine import Quarantine
from raydr.data.schema import read_arrow, write_arrow
from raydr.data.staging import Finished, write_bad_rows
from raydr.store.artifact import DONE, write_and_record
from raydr.store.folder import Folder
from raydr.store.manifest import Part

#: Hashes of the passages of some parts: of their ``ids``, and of titles and texts, ``contents``.
Hashes = Mapping[str, NDArray[np.uint64]]


def hash_parts(folder: Folder, names: Sequence[str]) -> Hashes:
    """Return hashes of the passages of some parts, one after the other."""
    ids, contents = [], []
    for name in names:
        table = read_arrow(folder.localize(name))
        ids.append(hash_strings(table.column("passage_id")))
        contents.append(hash_content(table.column("title"), table.column("text")))
    return {"ids": np.concatenate(ids), "contents": np.concatenate(contents)}


def group_parts(parts: Mapping[str, Part], rows: int) -> list[list[str]]:
    """Group names of consecutive parts, with at least so many rows a group (the last may have fewer).

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
) -> Finished:
    """Drop repeated passages from the parts and write the lookup arrays of those that stay.

    Of passages with the same id the first is kept. A copy is merged without a word where the reader expects
    copies, and a bad row otherwise; the same id with another text (case and white space aside) is a bad row.

    Args:
        folder: the corpus.
        parts: all passage parts, by name; one at least.
        hashes: their hashes, in the order of the names.
        passages_repeat: whether copies are expected.
        paths: full paths of the sources by their short names, for messages.
    """
    names = sorted(parts)
    passages = RowParts(names, (parts[name].rows for name in names), folder.localize)
    id_hash = np.concatenate([part["ids"] for part in hashes])
    content_hash = np.concatenate([part["contents"] for part in hashes])
    order = np.argsort(id_hash, kind="stable")
    repeats = _find_repeats(id_hash, order, passages)
    bad = Quarantine()
    num_merged = 0
    for row, first in sorted(repeats.items()):
        same_text = bool(content_hash[row] == content_hash[first])
        if same_text and passages_repeat:
            num_merged += 1
            continue
        repeated, kept = passages.row(row), passages.row(first)
        where = f"{paths.get(kept['source'], kept['source'])}:{kept['line']}"
        reason = f"duplicate passage id {kept['passage_id']!r}, first at {where}"
        if not same_text:
            reason += " with another text"
        bad.add(paths.get(repeated["source"], repeated["source"]), repeated["line"], reason, repeated["text"])
    write_bad_rows(folder, "duplicates", bad.files.values())

    keep = np.ones(len(id_hash), dtype=np.bool_)
    keep[list(repeats)] = False
    kept_parts = _drop_rows(folder, dict(parts), passages, keep)
    new_row = np.cumsum(keep) - 1
    order = order[keep[order]]
    arrays = {"id_hash": id_hash[order], "row": new_row[order].astype(np.int64), "content_hash": content_hash[keep]}
    for name, array in arrays.items():
        path = f"lookup/{name}.npy"
        kept_parts[path] = write_and_record(folder, path, len(array), partial(_save, array))
    return Finished(kept_parts, {"passages": int(keep.sum()), "merged": num_merged}, bad.count, bad.examples)


def _find_repeats(id_hash: NDArray[np.uint64], order: NDArray[np.int64], passages: RowParts) -> dict[int, int]:
    """Return the rows whose id stood in an earlier row, and that row. Equal hashes are compared by the ids
    themselves."""
    ordered = id_hash[order]
    equal = np.concatenate([[False], ordered[1:] == ordered[:-1]])
    repeats: dict[int, int] = {}
    first_of: dict[str, int] = {}
    group_hash: np.uint64 | None = None
    for at in np.flatnonzero(equal):
        if ordered[at] != group_hash:
            group_hash = ordered[at]
            before = int(order[at - 1])
            first_of = {passages.row(before)["passage_id"]: before}
        row = int(order[at])
        first = first_of.setdefault(passages.row(row)["passage_id"], row)
        if first != row:
            repeats[row] = first
    return repeats


def _drop_rows(folder: Folder, parts: dict[str, Part], passages: RowParts, keep: NDArray[np.bool_]) -> dict[str, Part]:
    for name, mask in zip(passages.names, np.split(keep, passages.starts[1:-1]), strict=True):
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
