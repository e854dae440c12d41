"""Index on disk: shards of consecutive passages, each with its table of passage ids.

Artefact ``index``::

    trained.faiss         centroids and codebooks without passages, if the index has any
    shard-000.faiss       opens with faiss.read_index; inner product, unless the model has another score function
    shard-000.ids.arrow   row: int64 as FAISS returns it, passage_id: string

For passages with several vectors, the id table has another column, num_vectors: int64. The FAISS file, with a row for
each vector, proposes candidates; it is omitted if all passages are scored. Scored vectors lie in another file, unless
the FAISS file's codes are scored::

    shard-000.vectors.arrow   vectors: large_list<fixed_size_list<halffloat>[dim]>, a row a passage
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydr.component import build
from raydr.data.embeddings import VectorSets, sets_of
from raydr.data.parts import ArtifactView, RowParts
from raydr.data.tables import read_arrow
from raydr.errors import ArtifactError
from raydr.indexing.faiss_backend import load_faiss
from raydr.models.scores.base import ScoreFunction
from raydr.store.artifact import Artifact

TRAINED_NAME = "trained.faiss"


def shard_name(shard: int) -> str:
    """Return the name of a shard's FAISS file.

    >>> shard_name(7)
    'shard-007.faiss'
    """
    return f"shard-{shard:03d}.faiss"


def vectors_name(shard: int) -> str:
    """Return the name of a shard's file of vectors.

    >>> vectors_name(7)
    'shard-007.vectors.arrow'
    """
    return f"shard-{shard:03d}.vectors.arrow"


def ids_name(shard: int) -> str:
    """Return the name of a shard's file of passage ids.

    >>> ids_name(7)
    'shard-007.ids.arrow'
    """
    return f"shard-{shard:03d}.ids.arrow"


class IndexShards(ArtifactView):
    """Read access to an ``index`` artefact."""

    kind = "index"

    def __init__(self, artifact: Artifact) -> None:
        super().__init__(artifact)
        info = artifact.info
        self.num_shards, self.dim = int(info["num_shards"]), int(info["dim"])
        #: The FAISS factory string that the index was made with.
        self.factory = str(info["factory"])
        #: Whether a passage has several vectors.
        self.several = bool(info.get("several"))
        #: Whether candidates are scored from the codes of the FAISS index.
        self.scored_from_codes = info.get("vectors") == "codes"
        #: Fingerprints of the passages' model and corpus.
        self.model_fingerprint, self.corpus_fingerprint = str(info["model"]), str(info["corpus"])
        #: Partition of each shard's passages, see :mod:`raydr.data.parts`; empty without partitions.
        self.partitions: list[str] = info.get("partitions") or [""] * self.num_shards
        ids = [ids_name(shard) for shard in range(self.num_shards)]
        rows = (artifact.manifest.parts[name].rows for name in ids)
        self._ids = RowParts(ids, rows, artifact.local)
        #: Corpus row at which each shard starts, and the total at the end; shape (shards + 1,).
        self.starts = self._ids.starts

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def score(self) -> ScoreFunction:
        """Score function of the vectors."""
        return build(ScoreFunction, self.artifact.info["score"])

    @property
    def shard_bytes(self) -> list[int]:
        """Bytes searched in each shard: its FAISS file, or the vectors of its passages."""
        parts = self.artifact.manifest.parts
        names = [vectors_name if vectors_name(at) in parts else shard_name for at in range(self.num_shards)]
        return [parts[name(at)].bytes for at, name in enumerate(names)]

    def load(self, shard: int) -> Any:
        """Open the FAISS index of a shard, memory-mapped if the index allows it.

        Raises:
            ArtifactError: the file was changed after it was written, or is unreadable for FAISS.
        """
        faiss = load_faiss()
        path = self.artifact.local(shard_name(shard))
        try:
            return faiss.read_index(path, faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_READ_ONLY)
        except RuntimeError as error:
            raise ArtifactError(
                f"FAISS {faiss.__version__} cannot read {path}: {error}. Build the index again"
            ) from error

    def load_sets(self, shard: int) -> list[VectorSets]:
        """Map the vector sets of a shard's passages, in passage order."""
        table = read_arrow(self.artifact.local(vectors_name(shard)))
        return [sets_of(pa.Table.from_batches([batch])) for batch in table.to_batches()]

    def num_vectors(self, shard: int) -> NDArray[np.int64]:
        """Return the number of vectors of each passage of a shard, if there are several."""
        return np.asarray(self._ids.part(shard)["num_vectors"].to_numpy())

    def passage_ids(self, rows: NDArray[np.int64]) -> pa.Array:
        """Return the passage ids of corpus rows, in the given order."""
        places, pieces = [np.zeros(0, dtype=np.int64)], [pa.chunked_array([], pa.string())]
        for shard, at, local in self._ids.by_part(rows):
            places.append(at)
            pieces.append(self._ids.part(shard)["passage_id"].take(pa.array(local)))
        ids = pa.chunked_array([chunk for piece in pieces for chunk in piece.chunks], pa.string()).combine_chunks()
        return ids.take(pa.array(np.argsort(np.concatenate(places))))
