"""A prepared corpus: passages in memory-mapped parts, and a lookup from passage id to row.

Artefact ``corpus``::

    passages/part-*.arrow       passages(passage_id, title, text, source, line); passages/PARTITION/part-*.arrow for
                                passages with a partition
    lookup/rows/part-*.arrow    (passage_id, content_hash) by row; passages with the same title and text have equal
                                hashes
    lookup/hashes/part-*.arrow  (id_hash, row) sorted by the hash; each file has an equal range of all hashes

Any process reads any passage by id without the corpus in memory: training, mining, judging and searching look texts up
here. On an object store, a lookup of ids requests no texts, and parts are fetched concurrently.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydr.data.parts import ArtifactView, RowParts, RowPool, as_numpy, partition_of
from raydr.data.rows import fold
from raydr.errors import DataError
from raydr.store import Artifact


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
    """Hash the folded titles and texts of passages, so that copies have equal hashes."""
    both = zip(titles.to_pylist(), texts.to_pylist(), strict=True)
    return hash_strings([fold(f"{title} {text}") for title, text in both])


def range_of(hashes: NDArray[np.uint64], num_ranges: int) -> NDArray[np.int64]:
    """Return the range of each hash, from 0; ``num_ranges`` is the number of equal ranges, a power of two.

    >>> range_of(np.array([0, 2**62, 2**64 - 1], dtype=np.uint64), 4).tolist()
    [0, 1, 3]
    """
    # A shift by all 64 bits is not defined.
    return np.asarray((hashes >> np.uint64(1)) // np.uint64(2**63 // num_ranges), dtype=np.int64)


@dataclass(frozen=True)
class Texts:
    """Titles and texts of some passages, in the order of their rows."""

    titles: list[str]
    texts: list[str]


class Corpus(ArtifactView):
    """Read access to a ``corpus`` artefact."""

    kind = "corpus"

    def __init__(self, artifact: Artifact) -> None:
        super().__init__(artifact)
        self.passages = RowParts.of(artifact, artifact.parts("passages"))
        self.part_names = self.passages.names
        self._rows = RowParts.of(artifact, artifact.parts("lookup/rows"))
        self._hashes = RowParts.of(artifact, artifact.parts("lookup/hashes"))

    def __reduce__(self) -> tuple[Any, ...]:
        # Tasks of a process share an open corpus.
        return _reopen, (self.artifact,)

    def __len__(self) -> int:
        return len(self.passages)

    def part(self, index: int) -> pa.Table:
        """Map a part as a table."""
        return self.passages.part(index)

    def parts(self) -> Iterator[pa.Table]:
        return map(self.passages.read, range(len(self.part_names)))

    def rows_of(self, passage_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the row of each passage id.

        Raises:
            DataError: ids are not in the corpus; the message has their number and the first.
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
        """Return the row of each id of a column with many repeats; each different id is looked up once."""
        different = pc.unique(passage_ids)
        rows = self.rows_of(different.to_pylist())
        return rows[np.asarray(pc.index_in(passage_ids, value_set=different).to_numpy(), dtype=np.int64)]

    def find(self, passage_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the row of each passage id, −1 where it is not in the corpus."""
        hashes, ids = hash_strings(passage_ids), pa.array(passage_ids, pa.string())
        rows = np.full(len(hashes), -1, dtype=np.int64)
        part_of = range_of(hashes, len(self._hashes.names))
        parts = np.unique(part_of).tolist()
        self._hashes.fetch(parts)
        first = np.zeros(len(hashes), dtype=np.int64)
        for part in parts:
            places = np.flatnonzero(part_of == part)
            id_hash, row = self._sorted(part)
            at = np.searchsorted(id_hash, hashes[places])
            hit = at < len(id_hash)
            hit[hit] = id_hash[at[hit]] == hashes[places[hit]]
            first[places], rows[places[hit]] = at, row[at[hit]]
        hits = np.flatnonzero(rows >= 0)
        for part, at, local in self._rows.by_part(rows[hits]):
            places = hits[at]
            stored = self._rows.part(part)["passage_id"].take(pa.array(local))
            for place in places[~pc.equal(stored, ids.take(pa.array(places))).to_numpy()].tolist():
                rows[place] = self._resolve_collision(int(part_of[place]), int(first[place]), passage_ids[place])
        return rows

    def _sorted(self, part: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Return a range of hashes, and the row of each."""
        table = self._hashes.part(part)
        return as_numpy(table["id_hash"]), as_numpy(table["row"])

    def _resolve_collision(self, part: int, start: int, passage_id: str) -> int:
        id_hash, row = self._sorted(part)
        end = np.searchsorted(id_hash, id_hash[start], side="right")
        rows = row[start:end]
        same = [at for at, stored in enumerate(self.ids(rows)) if stored == passage_id]
        return int(rows[same[0]]) if same else -1

    def ids(self, rows: NDArray[np.int64]) -> list[str]:
        return self._rows.column("passage_id", rows)

    def texts(self, rows: NDArray[np.int64]) -> Texts:
        return Texts(self.passages.column("title", rows), self.passages.column("text", rows))

    def texts_of_run(self, passage_ids: Sequence[str]) -> Texts:
        """Return the texts of ranked passages; empty for ids that an imported run has and the corpus has not."""
        rows = self.find(passage_ids)
        texts, known = self.texts(np.maximum(rows, 0)), (rows >= 0).tolist()
        titles, bodies = (
            [text if is_known else "" for text, is_known in zip(column, known, strict=True)]
            for column in (texts.titles, texts.texts)
        )
        return Texts(titles, bodies)

    @cached_property
    def part_partitions(self) -> NDArray[np.object_]:
        """Partition of each part; empty where it has none."""
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
        hashes = np.empty(len(rows), dtype=np.uint64)
        for part, places, local in self._rows.by_part(rows):
            hashes[places] = as_numpy(self._rows.part(part)["content_hash"])[local]
        return hashes


@lru_cache(maxsize=1)
def _reopen(artifact: Artifact) -> Corpus:
    """Open a corpus that another process sent; it stays open for the next task."""
    return Corpus(artifact)
