"""Read access to artefacts, and to tables whose rows are numbered through several files."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydr.data.schema import read_arrow
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder, side_by_side


class ArtifactView:
    """Read access to an artefact of one kind; nothing is read in advance."""

    kind: ClassVar[str]

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact

    @classmethod
    def open(cls, path: str | Folder) -> Self:
        """Open the artefact at ``path``; :class:`~raydr.errors.ArtifactError` if it is not complete."""
        return cls(Artifact.open(path, cls.kind))

    def __reduce__(self) -> tuple[Any, ...]:
        # What is mapped stays here: another process maps it anew.
        return type(self), (self.artifact,)

    @property
    def fingerprint(self) -> str:
        return self.artifact.fingerprint


def offsets_of(sizes: Iterable[int]) -> NDArray[np.int64]:
    """Return the starts of consecutive pieces, and the end of the last piece, shape (pieces + 1,).

    >>> offsets_of([2, 0, 3]).tolist()
    [0, 2, 2, 5]
    """
    return np.concatenate([[0], np.cumsum(np.fromiter(sizes, dtype=np.int64))]).astype(np.int64)


def as_numpy(column: pa.ChunkedArray) -> NDArray[Any]:
    """View a mapped column of numbers, of one record batch; nothing is copied."""
    return np.asarray(column.chunk(0).to_numpy() if column.num_chunks else column.to_numpy())


class RowParts:
    """Rows of a table in several Arrow files; a file is mapped when one of its rows is read for the first time.

    Args:
        names: of the files.
        rows: of each file.
        local: the local path of a file.
    """

    def __init__(self, names: Sequence[str], rows: Iterable[int], local: Callable[[str], str]) -> None:
        self.names = list(names)
        #: Row at which each part starts, and the number of rows at the end; shape (parts + 1,).
        self.starts = offsets_of(rows)
        self._local = local
        self._tables: dict[int, pa.Table] = {}

    @classmethod
    def of(cls, artifact: Artifact, names: Sequence[str]) -> RowParts:
        """Return some parts of an artefact."""
        return cls(names, (artifact.manifest.parts[name].rows for name in names), artifact.local)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def part(self, index: int) -> pa.Table:
        """Map one part as a table."""
        if index not in self._tables:
            self._tables[index] = self.read(index)
        return self._tables[index]

    def read(self, index: int) -> pa.Table:
        """Map a part as :meth:`part` does, for as long as the table is in use."""
        return read_arrow(self._local(self.names[index]))

    def fetch(self, parts: Iterable[int]) -> None:
        """Map parts, those of an object store many at a time."""
        missing = [part for part in parts if part not in self._tables]
        # The ranks of a node begin with different files, so that they do not wait for each other's.
        random.Random(os.getpid()).shuffle(missing)
        if missing:
            self._tables.update(zip(missing, side_by_side(self.read, missing), strict=True))

    def by_part(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield rows by part: the part, places among ``rows``, and the rows counted within the part.

        All of these parts are mapped.
        """
        if not len(rows):
            return
        part_of = np.searchsorted(self.starts, rows, side="right") - 1
        order = np.argsort(part_of, kind="stable")
        parts, firsts = np.unique(part_of[order], return_index=True)
        self.fetch(parts.tolist())
        for part, places in zip(parts.tolist(), np.split(order, firsts[1:]), strict=True):
            yield part, places, rows[places] - self.starts[part]

    def column(self, name: str, rows: NDArray[np.int64]) -> list[Any]:
        """Return a column's values in some rows, in their order."""
        values = np.empty(len(rows), dtype=object)
        for part, places, local in self.by_part(rows):
            values[places] = self.part(part)[name].take(pa.array(local)).to_pylist()
        return values.tolist()

    def numbers(self, name: str, rows: NDArray[np.int64], dtype: type[np.generic]) -> NDArray[Any]:
        """Return a column's numbers in some rows, in their order."""
        values = np.empty(len(rows), dtype=dtype)
        for part, places, local in self.by_part(rows):
            values[places] = as_numpy(self.part(part)[name])[local]
        return values

    def row(self, row: int) -> dict[str, Any]:
        """Return all columns of a row."""
        [(part, _, local)] = self.by_part(np.array([row]))
        values: dict[str, Any] = self.part(part).take(pa.array(local)).to_pylist()[0]
        return values
