"""A prepared corpus: passages in memory-mapped parts, and a lookup from passage id to row.

Artefact ``corpus``::

    passages/part-*.arrow    passages(passage_id, title, text, source, line); passages/PARTITION/part-*.arrow of those
                             that have a partition
    lookup/id_hash.npy       uint64, sorted hashes of all passage ids
    lookup/row.npy           int64, the row of each of them
    lookup/content_hash.npy  uint64 by row: equal for passages with the same title and text

Any process can read any passage by id without holding the corpus: training, mining, judging and searching
look texts up here instead of carrying copies of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydr.data.opened import Opened, RowParts
from raydr.data.partitions import RowPool, partition_of
from raydr.errors import DataError
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder
from raydr.store.manifest import Manifest


def hash_strings(strings: Sequence[str] | pa.Array | pa.ChunkedArray) -> NDArray[np.uint64]:
    """Return stable 64-bit hashes, the same in every process and on every machine.

    >>> int(hash_strings(["a"])[0]) == int(hash_strings(["b", "a"])[1])
    True
    """
    from pandas.util import hash_array

    listed = strings.to_pylist() if isinstance(strings, pa.Array | pa.ChunkedArray) else list(strings)
    values = np.empty(len(listed), dtype=object)
    values[:] = listed
    return np.asarray(hash_array(values, categorize=False), dtype=np.uint64)


def hash_content(titles: pa.ChunkedArray | pa.Array, texts: pa.ChunkedArray | pa.Array) -> NDArray[np.uint64]:
    """Hash whole passages after folding case and white space, so that copies are recognised."""
    folded = [
        " ".join(f"{title} {text}".lower().split())
        for title, text in zip(titles.to_pylist(), texts.to_pylist(), strict=True)
    ]
    return hash_strings(folded)


@dataclass(frozen=True)
class Texts:
    """Titles and texts of some passages, in the order of their rows."""

    titles: list[str]
    texts: list[str]


class Corpus(Opened):
    """Read access to a ``corpus`` artefact."""

    kind = "corpus"

    def __init__(self, artifact: Artifact) -> None:
        super().__init__(artifact)
        self.passages = RowParts.of(artifact, artifact.parts("passages"))
        self.part_names = self.passages.names
        self._lookup: dict[str, NDArray[np.generic]] = {}

    @classmethod
    def open(cls, path: str | Folder) -> Corpus:
        artifact = Artifact.open(path, cls.kind)
        if artifact.folder.is_local:
            return cls(artifact)
        return _kept(artifact.folder, artifact.manifest.model_dump_json())

    def __len__(self) -> int:
        return len(self.passages)

    def part(self, index: int) -> pa.Table:
        """Map one part as a table."""
        return self.passages.part(index)

    def parts(self) -> Iterator[pa.Table]:
        return map(self.passages.read, range(len(self.part_names)))

    def rows_of(self, passage_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the row of each passage id.

        Raises:
            DataError: an id is not in the corpus; names the first and how many there are.
        """
        rows = self.find(passage_ids)
        if (rows < 0).any():
            missing = [passage_ids[at] for at in np.flatnonzero(rows < 0).tolist()]
            raise DataError(
                f"{len(missing)} of {len(passage_ids)} passage ids are not in the corpus at {self.artifact.folder}, "
                f"the first is {missing[0]!r}: were they made with another corpus?"
            )
        return rows

    def rows_of_column(self, passage_ids: pa.ChunkedArray) -> NDArray[np.int64]:
        """Return the rows of a column that names many passages more than once: each id is looked up once."""
        different = pc.unique(passage_ids)
        rows = self.rows_of(different.to_pylist())
        return rows[np.asarray(pc.index_in(passage_ids, value_set=different).to_numpy(), dtype=np.int64)]

    def find(self, passage_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the row of each passage id, −1 where it is not in the corpus."""
        id_hash, row = self._array("id_hash"), self._array("row")
        wanted = hash_strings(passage_ids)
        at = np.searchsorted(id_hash, wanted)
        hit = np.zeros(len(wanted), dtype=bool)
        inside = at < len(id_hash)
        hit[inside] = id_hash[at[inside]] == wanted[inside]
        rows = np.full(len(wanted), -1, dtype=np.int64)
        rows[hit] = row[at[hit]]
        for position, passage_id in zip(np.flatnonzero(hit).tolist(), self.ids(rows[hit]), strict=True):
            if passage_id != passage_ids[position]:
                rows[position] = self._resolve_collision(int(at[position]), wanted[position], passage_ids[position])
        return rows

    def _resolve_collision(self, start: int, wanted: np.uint64, passage_id: str) -> int:
        id_hash, row = self._array("id_hash"), self._array("row")
        while start < len(id_hash) and id_hash[start] == wanted:
            if self.passages.row(int(row[start]))["passage_id"] == passage_id:
                return int(row[start])
            start += 1
        return -1

    def ids(self, rows: NDArray[np.int64]) -> list[str]:
        return self.passages.column("passage_id", rows)

    def texts(self, rows: NDArray[np.int64]) -> Texts:
        return Texts(self.passages.column("title", rows), self.passages.column("text", rows))

    @cached_property
    def part_partitions(self) -> NDArray[np.object_]:
        """The partition of each part; empty where it has none."""
        return np.array([partition_of(name) for name in self.part_names], dtype=object)

    def partitions(self, rows: NDArray[np.int64]) -> NDArray[np.object_]:
        """Return the partition of each passage; empty where it has none."""
        return np.asarray(self.part_partitions[np.searchsorted(self.passages.starts, rows, side="right") - 1])

    def pool(self, partitions: Collection[str] | None) -> RowPool:
        """Return the rows of some partitions; all rows if None."""
        if partitions is None:
            return RowPool.of([0], [len(self)])
        parts = np.flatnonzero(np.isin(self.part_partitions, list(partitions)))
        return RowPool.of(self.passages.starts[parts].tolist(), np.diff(self.passages.starts)[parts].tolist())

    def content_hashes(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        return np.asarray(self._array("content_hash")[rows], dtype=np.uint64)

    def _array(self, name: str) -> NDArray[np.generic]:
        if name not in self._lookup:
            path = self.artifact.local(f"lookup/{name}.npy")
            self._lookup[name] = np.load(path, mmap_mode="r", allow_pickle=False)
        return self._lookup[name]


@lru_cache(maxsize=1)
def _kept(folder: Folder, manifest: str) -> Corpus:
    """Open a corpus; a corpus in an object store stays open, since each task would look up thousands of parts anew."""
    return Corpus(Artifact(folder, Manifest.model_validate_json(manifest)))
