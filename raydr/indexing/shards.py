"""An index on disk: shards of consecutive passages, each with its table of passage ids.

Artefact ``index``::

    trained.faiss         centroids and codebooks before any passage was added, where the index has such
    shard-000.faiss       opens with faiss.read_index; inner product, unless the model's score is another
    shard-000.ids.arrow   row: int64 as FAISS returns it, passage_id: string

Where passages have several vectors, the id table has a column num_vectors: int64 besides. The FAISS file, a row a
vector, proposes candidates, and is left out where all passages are scored; what they are scored from is left out where
that are the FAISS file's codes::

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
from raydr.data.schema import read_arrow
from raydr.errors import ArtifactError
from raydr.indexing.faiss_backend import load_faiss
from raydr.models.scores.base import ScoreFunction
from raydr.store.artifact import Artifact

TRAINED_NAME = "trained.faiss"


def shard_name(shard: int) -> str:
    """
    >>> shard_name(7)
    'shard-007.faiss'
    """
    return f"shard-{shard:03d}.faiss"


def vectors_name(shard: int) -> str:
    """
    >>> vectors_name(7)
    'shard-007.vectors.arrow'
    """
    return f"shard-{shard:03d}.vectors.arrow"


def ids_name(shard: int) -> str:
    """
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
        #: Whether the vectors of candidates are those that the FAISS index holds, and no others are kept.
        self.scored_from_codes = info.get("vectors") == "codes"
        #: Fingerprints of the model that encoded the passages, and of their corpus.
        self.model_fingerprint, self.corpus_fingerprint = str(info["model"]), str(info["corpus"])
        #: The partition of each shard's passages, see :mod:`raydr.data.partitions`; empty where they have none.
        self.partitions: list[str] = info.get("partitions") or [""] * self.num_shards
        ids = [ids_name(shard) for shard in range(self.num_shards)]
        rows = (artifact.manifest.parts[name].rows for name in ids)
        self._ids = RowParts(ids, rows, artifact.local)
        #: Corpus row at which each shard starts, and the number of passages at the end; shape (shards + 1,).
        self.starts = self._ids.starts

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def score(self) -> ScoreFunction:
        """Return the score function of a query's and a passage's vectors."""
        return build(ScoreFunction, self.artifact.info["score"])

    @property
    def shard_bytes(self) -> list[int]:
        """Return the bytes that each shard is searched in: its FAISS file, or the vectors of its passages."""
        parts = self.artifact.manifest.parts
        names = [vectors_name if vectors_name(at) in parts else shard_name for at in range(self.num_shards)]
        return [parts[name(at)].bytes for at, name in enumerate(names)]

    def load(self, shard: int) -> Any:
        """Open the FAISS index of a shard; its codes are memory-mapped where the kind of index allows it.

        Raises:
            ArtifactError: the file was changed after it was written, or FAISS cannot read it.
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
        """Map the vectors of a shard's passages, several each, in the order of the passages."""
        table = read_arrow(self.artifact.local(vectors_name(shard)))
        return [sets_of(pa.Table.from_batches([batch])) for batch in table.to_batches()]

    def num_vectors(self, shard: int) -> NDArray[np.int64]:
        """Return the number of vectors of each passage of a shard, where they have several."""
        return np.asarray(self._ids.part(shard)["num_vectors"].to_numpy())

    def passage_ids(self, rows: NDArray[np.int64]) -> pa.Array:
        """Return the passage ids of some corpus rows, in the order of the rows."""
        places, pieces = [np.zeros(0, dtype=np.int64)], [pa.chunked_array([], pa.string())]
        for shard, at, local in self._ids.by_part(rows):
            places.append(at)
            pieces.append(self._ids.part(shard)["passage_id"].take(pa.array(local)))
        ids = pa.chunked_array([chunk for piece in pieces for chunk in piece.chunks], pa.string()).combine_chunks()
        return ids.take(pa.array(np.argsort(np.concatenate(places))))
