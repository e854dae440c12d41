"""Embeddings: one vector a passage or query, in memory-mapped parts of half precision.

Artefact ``embeddings``::

    part-*.arrow    id: string, vector: fixed_size_list<halffloat>[dim]

There is one part for each part of the corpus or split that was encoded, with the same rows in the same order.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydr.data.schema import read_arrow
from raydr.errors import DataError
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder


def to_embedding_table(ids: pa.Array | list[str], vectors: NDArray[np.float16]) -> pa.Table:
    """Ids and their vectors, shape (N, dim), as a table of one part.

    >>> table = to_embedding_table(["a", "b"], np.eye(2, dtype=np.float16))
    >>> str(table.schema.field("vector").type)
    'fixed_size_list<item: halffloat>[2]'
    """
    num_rows, dim = vectors.shape
    if num_rows != len(ids):
        raise DataError(f"{len(ids)} ids for {num_rows} vectors: the encoder must give one vector for each text")
    flat = pa.array(np.ascontiguousarray(vectors, dtype=np.float16).reshape(-1), type=pa.float16())
    columns = [pa.array(ids, type=pa.string()), pa.FixedSizeListArray.from_arrays(flat, dim)]
    return pa.Table.from_arrays(columns, names=["id", "vector"])


def dim_of(table: pa.Table) -> int:
    """The dimension of a part's vectors.

    >>> dim_of(to_embedding_table(["a"], np.zeros((1, 8), dtype=np.float16)))
    8
    """
    return int(table.schema.field("vector").type.list_size)


def vectors_of(table: pa.Table) -> NDArray[np.float16]:
    """The vectors of a part, shape (N, dim): a view of the mapped file, nothing is copied."""
    dim = dim_of(table)
    chunks = [chunk for chunk in table.column("vector").chunks if len(chunk)]
    if not chunks:
        return np.empty((0, dim), dtype=np.float16)
    if len(chunks) > 1:
        raise DataError(f"an embeddings part must be one record batch, found {len(chunks)}: make it again")
    flat = chunks[0].flatten().to_numpy(zero_copy_only=True)
    return cast(NDArray[np.float16], flat.reshape(-1, dim))


class Embeddings:
    """Read access to an ``embeddings`` artefact. Cheap to open: a part is mapped when it is asked for."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self.part_names = artifact.parts()
        rows = [artifact.manifest.parts[name].rows for name in self.part_names]
        #: Row at which each part starts, and the number of rows at the end; shape (parts + 1,).
        self.starts: NDArray[np.int64] = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)

    @classmethod
    def open(cls, path: str | Folder) -> Embeddings:
        """Open the embeddings at ``path``; :class:`~raydr.errors.ArtifactError` if they are not complete."""
        return cls(Artifact.open(path, "embeddings"))

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def dim(self) -> int:
        return int(self.artifact.info["dim"])

    @property
    def side(self) -> str:
        """``passage`` or ``query``."""
        return str(self.artifact.info["side"])

    @property
    def fingerprint(self) -> str:
        return self.artifact.fingerprint

    @property
    def model_fingerprint(self) -> str:
        """Fingerprint of the model that made the vectors."""
        return str(self.artifact.info["model"])

    @property
    def source_fingerprint(self) -> str:
        """Fingerprint of the corpus or data set that was encoded."""
        return str(self.artifact.info["source"])

    def ids(self, index: int) -> pa.ChunkedArray:
        """The ids of one part."""
        return read_arrow(self.artifact.local(self.part_names[index])).column("id")

    def vectors(self, index: int) -> NDArray[np.float16]:
        """The vectors of one part, shape (rows, dim), mapped."""
        return vectors_of(read_arrow(self.artifact.local(self.part_names[index])))

    def part(self, index: int) -> tuple[list[str], NDArray[np.float16]]:
        """Ids and vectors of one part."""
        return self.ids(index).to_pylist(), self.vectors(index)

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float16]:
        """The vectors of some rows, in the order asked for; parts are mapped one at a time."""
        taken = np.empty((len(rows), self.dim), dtype=np.float16)
        part_of = np.searchsorted(self.starts, rows, side="right") - 1
        for part in np.unique(part_of):
            at = np.flatnonzero(part_of == part)
            taken[at] = self.vectors(int(part))[rows[at] - self.starts[part]]
        return taken
