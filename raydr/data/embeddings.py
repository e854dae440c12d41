"""Vectors of texts, a single vector or several per text: layout in memory, and parts of ``embeddings`` artefacts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydr.data.parts import ArtifactView, RowParts, offsets_of
from raydr.errors import DataError
from raydr.store import Artifact


@dataclass(frozen=True)
class VectorSets:
    """Several vectors for each of N texts, T vectors in all.

    Args:
        vectors_TD: vectors of all texts, text by text.
        offsets: int64, shape (N + 1,): text i has ``vectors_TD[offsets[i]:offsets[i + 1]]``.
    """

    vectors_TD: NDArray[np.float16]
    offsets: NDArray[np.int64]

    @classmethod
    def of_padded(cls, padded_NMD: NDArray[np.float32]) -> VectorSets:
        """Remove the padding of encodings.

        >>> VectorSets.of_padded(np.array([[[1, 0], [0, 0]], [[0, 2], [3, 0]]], dtype=np.float32)).offsets.tolist()
        [0, 1, 3]
        """
        is_vector_NM = (padded_NMD != 0).any(axis=-1)
        return cls(padded_NMD[is_vector_NM].astype(np.float16), offsets_of(is_vector_NM.sum(axis=1)))

    @classmethod
    def join(cls, sets: Sequence[VectorSets]) -> VectorSets:
        """Concatenate the texts of several sets."""
        lengths = np.concatenate([vectors.lengths for vectors in sets])
        return cls(np.concatenate([vectors.vectors_TD for vectors in sets]), offsets_of(lengths))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def dim(self) -> int:
        return int(self.vectors_TD.shape[1])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of vectors of each text."""
        return np.diff(self.offsets)

    def slice(self, start: int, stop: int) -> VectorSets:
        """Return the vectors of consecutive texts."""
        offsets = self.offsets[start : stop + 1]
        return VectorSets(self.vectors_TD[offsets[0] : offsets[-1]], offsets - offsets[0])

    def take(self, rows: NDArray[np.int64]) -> VectorSets:
        """Return the vectors of the texts ``rows``, in their order."""
        lengths = self.lengths[rows]
        offsets = offsets_of(lengths)
        place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        return VectorSets(self.vectors_TD[np.repeat(self.offsets[:-1][rows], lengths) + place], offsets)

    def padded(self) -> NDArray[np.float16]:
        """Pad each text with zero vectors to the longest text, shape (N, M, D).

        >>> VectorSets(np.ones((3, 1), dtype=np.float16), np.array([0, 1, 3])).padded()[:, :, 0].tolist()
        [[1.0, 0.0], [1.0, 1.0]]
        """
        lengths = self.lengths
        padded_NMD = np.zeros((len(self), int(lengths.max(initial=0)), self.dim), dtype=np.float16)
        text = np.repeat(np.arange(len(self)), lengths)
        padded_NMD[text, np.arange(len(self.vectors_TD)) - np.repeat(self.offsets[:-1] - self.offsets[0], lengths)] = (
            self.vectors_TD
        )
        return padded_NMD


#: Vectors of N texts: shape (N, dim) for a single vector per text, or several per text.
Encodings = NDArray[np.float16] | VectorSets


def to_embedding_table(ids: pa.Array | list[str], vectors: Encodings) -> pa.Table:
    """Return the table of a part from the ids and vectors of its texts.

    >>> table = to_embedding_table(["a", "b"], np.eye(2, dtype=np.float16))
    >>> str(table.schema.field("vector").type)
    'fixed_size_list<item: halffloat>[2]'
    """
    if len(vectors) != len(ids):
        raise DataError(f"{len(ids)} ids for {len(vectors)} vectors: the encoder must give one vector for each text")
    column = to_column(vectors)
    name = "vectors" if isinstance(vectors, VectorSets) else "vector"
    return pa.Table.from_arrays([pa.array(ids, type=pa.string()), column], names=["id", name])


def to_column(vectors: Encodings) -> pa.Array:
    """Return the vectors of N texts as a column of N rows."""
    if isinstance(vectors, VectorSets):
        return pa.LargeListArray.from_arrays(pa.array(vectors.offsets), to_column(vectors.vectors_TD))
    flat = pa.array(np.ascontiguousarray(vectors, dtype=np.float16).reshape(-1), type=pa.float16())
    return pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])


def is_several(table: pa.Table) -> bool:
    """Return whether a part has several vectors per text."""
    return "vectors" in table.schema.names


def dim_of(table: pa.Table) -> int:
    """Return the dimension of a part's vectors.

    >>> dim_of(to_embedding_table(["a"], np.zeros((1, 8), dtype=np.float16)))
    8
    """
    if is_several(table):
        return int(table.schema.field("vectors").type.value_type.list_size)
    return int(table.schema.field("vector").type.list_size)


def vectors_of(table: pa.Table) -> NDArray[np.float16]:
    """Return the vectors of a part, shape (N, dim), as a view of the mapped file."""
    return _rows(_only_chunk(table, "vector"))


def sets_of(table: pa.Table) -> VectorSets:
    """Return the vectors of a part with several per text, as a view of the mapped file.

    >>> sets = VectorSets(np.ones((3, 2), dtype=np.float16), np.array([0, 1, 3]))
    >>> sets_of(to_embedding_table(["a", "b"], sets)).lengths.tolist()
    [1, 2]
    """
    chunk = _only_chunk(table, "vectors")
    offsets = chunk.offsets.to_numpy()
    return VectorSets(_rows(chunk.values)[offsets[0] : offsets[-1]], offsets - offsets[0])


def _only_chunk(table: pa.Table, column: str) -> pa.Array:
    chunks = [chunk for chunk in table.column(column).chunks if len(chunk)]
    if len(chunks) > 1:
        raise DataError(f"an embeddings part must be one record batch, found {len(chunks)}: make it again")
    return chunks[0] if chunks else pa.array([], table.schema.field(column).type)


def _rows(vectors: pa.FixedSizeListArray) -> NDArray[np.float16]:
    flat = vectors.flatten().to_numpy(zero_copy_only=True)
    return cast(NDArray[np.float16], flat.reshape(-1, vectors.type.list_size))


class Embeddings(ArtifactView):
    """Read access to an ``embeddings`` artefact."""

    kind = "embeddings"

    def __init__(self, artifact: Artifact) -> None:
        super().__init__(artifact)
        self.rows = RowParts.of(artifact, artifact.parts())
        self.part_names, self.starts = self.rows.names, self.rows.starts
        self.dim = int(artifact.info["dim"])
        #: Fingerprints of the model that made the vectors, and of the corpus or data set that was encoded.
        self.model_fingerprint, self.source_fingerprint = str(artifact.info["model"]), str(artifact.info["source"])
        #: Partition of each part, see :mod:`raydr.data.parts`; empty where it has none.
        self.partitions: list[str] = artifact.info.get("partitions") or [""] * len(self.part_names)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def several(self) -> bool:
        """Whether a text has several vectors."""
        return is_several(self.rows.read(0))

    @cached_property
    def num_vectors(self) -> int:
        """Number of vectors of all texts."""
        if not self.several:
            return len(self)
        return sum(len(self.sets(part).vectors_TD) for part in range(len(self.part_names)))

    def ids(self, index: int) -> pa.ChunkedArray:
        """Return the ids of a part."""
        return self.rows.read(index).column("id")

    def vectors(self, index: int) -> NDArray[np.float16]:
        """Map the vectors of a part, shape (vectors, dim), text by text."""
        table = self.rows.read(index)
        return sets_of(table).vectors_TD if is_several(table) else vectors_of(table)

    def sets(self, index: int) -> VectorSets:
        """Map the vectors of a part with several per text."""
        return sets_of(self.rows.read(index))

    def slice(self, index: int, start: int, stop: int) -> Encodings:
        """Return the vectors of consecutive texts of a part."""
        return self.sets(index).slice(start, stop) if self.several else self.vectors(index)[start:stop]

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float16]:
        """Return the vectors of some rows, in their order; parts are mapped one at a time."""
        taken = np.empty((len(rows), self.dim), dtype=np.float16)
        for part, places, local in self.rows.by_part(rows):
            taken[places] = self.vectors(part)[local]
        return taken
