"""Read access to artefacts, tables with rows in several files, and partitions of rows.

A partition is a group of passages to which a query's search and negatives can be confined. Each part of a corpus or of
a split's queries holds rows of a single partition, which its name contains: ``passages/PARTITION/part-*.arrow``,
``queries/SPLIT/PARTITION/part-*.arrow``. Parts of vectors and shards of an index hold a single partition too: a search
in a partition searches its shards, and a draw takes rows of a few ranges.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydr.component import Config
from raydr.data.tables import read_arrow
from raydr.errors import ConfigError
from raydr.store import Artifact, Folder
from raydr.store.folder import side_by_side


class ArtifactView:
    """Read access to an artefact of a kind; nothing is read in advance."""

    kind: ClassVar[str]

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact

    @classmethod
    def open(cls, path: str | Folder) -> Self:
        """Open the artefact at ``path``; :class:`~raydr.errors.ArtifactError` if it is not complete."""
        return cls(Artifact.open(path, cls.kind))

    def __reduce__(self) -> tuple[Any, ...]:
        # Mapped files are not sent: another process maps them itself.
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
    """Rows of a table in several Arrow files; a file is mapped at the first read of its rows.

    Args:
        names: names of the files.
        rows: number of rows of each file.
        local: function from the name of a file to its local path.
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
        """Map a part as a table, and keep it mapped."""
        if index not in self._tables:
            self._tables[index] = self.read(index)
        return self._tables[index]

    def read(self, index: int) -> pa.Table:
        """Map a part as a table, for as long as the table is in use."""
        return read_arrow(self._local(self.names[index]))

    def fetch(self, parts: Iterable[int]) -> None:
        """Map parts; files of an object store are fetched concurrently."""
        missing = [part for part in parts if part not in self._tables]
        # The ranks of a node begin with different files, so that they do not wait for each other.
        random.Random(os.getpid()).shuffle(missing)
        if missing:
            self._tables.update(zip(missing, side_by_side(self.read, missing), strict=True))

    def by_part(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield rows by part: the part, places among ``rows``, and row numbers within the part.

        All of these parts are mapped and kept.
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

    def row(self, row: int) -> dict[str, Any]:
        """Return all columns of a row."""
        [(part, _, local)] = self.by_part(np.array([row]))
        values: dict[str, Any] = self.part(part).take(pa.array(local)).to_pylist()[0]
        return values


#: Passages for a query: its own partition, the partitions of its split's queries, or the whole corpus.
Scope = Literal["own", "split", "all"]


class PartitionConfig(Config):
    """Partitions to which a query is confined; without partitions, these settings have no effect.

    ``own`` is the query's own partition, ``split`` all partitions of its split's queries, ``all`` the corpus. A query
    without a partition is never confined.
    """

    negatives: Scope = "own"
    """Scope of a training query's negatives: runs over the training split, mining, and random passages."""

    search: Scope = "own"
    """Scope of searches for queries of the other splits; during training, ``train.dev.scope`` applies."""


def partition_of(part: str) -> str:
    """Return the partition of a part of a corpus or of queries; empty if it has none.

    >>> partition_of("passages/lego/part-0000-00000.arrow"), partition_of("queries/test/lego/part-00000.arrow")
    ('lego', 'lego')
    >>> partition_of("passages/part-0000-00000.arrow"), partition_of("queries/test/part-00000.arrow")
    ('', '')
    """
    table, *folders, _ = part.split("/")
    return "".join(folders if table == "passages" else folders[1:])


def split_scope(system: str) -> tuple[str, Scope | None]:
    """Split a system's name into the system and the scope of its search, if the name has a scope.

    Raises:
        ConfigError: the scope is unknown.

    >>> split_scope("trained@split"), split_scope("trained")
    (('trained', 'split'), ('trained', None))
    """
    name, at, suffix = system.partition("@")
    scopes: tuple[Scope, ...] = get_args(Scope)
    scope = next((scope for scope in scopes if scope == suffix), None)
    if at and scope is None:
        raise ConfigError(f"system {system}: unknown scope {suffix!r}; expected after @: {', '.join(scopes)}")
    return name, scope


def within(scope: Scope, own: str, of_split: Collection[str]) -> frozenset[str] | None:
    """Return the partitions that confine a query; None if it is not confined.

    Args:
        scope: scope of the query.
        own: the query's partition; empty if it has none.
        of_split: partitions of all queries of its split.

    >>> sorted(within("split", "a", ["a", "b"])), within("split", "", ["a"]), within("all", "a", ["a", "b"])
    (['a', 'b'], None, None)
    """
    if not own or scope == "all":
        return None
    return frozenset((own,)) if scope == "own" else frozenset(of_split) - {""}


def check_partition(partition: str, partitions: Iterable[str], where: str) -> None:
    """Check that a partition is known.

    Args:
        partition: partition to check; empty for none.
        partitions: partitions of the corpus; an empty string stands for passages without a partition.
        where: name of the corpus, for messages, for example ``the corpus at FOLDER``.

    Raises:
        ConfigError: the partition is unknown.
    """
    known = sorted(set(partitions) - {""})
    if partition and partition not in known:
        has = f"it has {', '.join(known)}" if known else "its passages have none"
        raise ConfigError(f"{where} has no partition {partition!r}: {has}")


@dataclass(frozen=True)
class RowPool:
    """Pool of corpus rows, as ranges of consecutive rows.

    Args:
        firsts: first row of each range.
        offsets: start of each range among the rows of the pool, and their number; shape (ranges + 1,).
    """

    firsts: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, firsts: Sequence[int], sizes: Sequence[int]) -> RowPool:
        return cls(np.array(firsts, dtype=np.int64), offsets_of(sizes))

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def rows(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the corpus rows at some places of the pool.

        >>> RowPool.of([10, 50], [2, 3]).rows(np.array([0, 1, 2, 4])).tolist()
        [10, 11, 50, 52]
        """
        at = np.searchsorted(self.offsets, places, side="right") - 1
        return np.asarray(self.firsts[at] + places - self.offsets[at])
