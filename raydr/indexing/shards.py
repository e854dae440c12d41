"""An index on disk: FAISS files of consecutive passages, each with its table of passage ids.

Artefact ``index``::

    trained.faiss         centroids and codebooks before any passage was added, where the index has such
    shard-000.faiss       opens with faiss.read_index; inner product, unless the model's score is another
    shard-000.ids.arrow   row: int64 as FAISS returns it, passage_id: string
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydr.component import build
from raydr.data.schema import read_arrow
from raydr.errors import ArtifactError
from raydr.indexing.backend import load_faiss
from raydr.models.scores.base import ScoreFunction
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder

TRAINED_NAME = "trained.faiss"


def shard_name(shard: int) -> str:
    """
    >>> shard_name(7)
    'shard-007.faiss'
    """
    return f"shard-{shard:03d}.faiss"


def ids_name(shard: int) -> str:
    """
    >>> ids_name(7)
    'shard-007.ids.arrow'
    """
    return f"shard-{shard:03d}.ids.arrow"


class IndexShards:
    """Read access to an ``index`` artefact. Cheap to open: nothing is read before it is asked for."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self.num_shards = int(artifact.info["num_shards"])
        rows = [artifact.manifest.parts[shard_name(shard)].rows for shard in range(self.num_shards)]
        #: Corpus row at which each shard starts, and the number of passages at the end; shape (shards + 1,).
        self.starts: NDArray[np.int64] = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
        self._ids: dict[int, pa.ChunkedArray] = {}

    @classmethod
    def open(cls, path: str | Folder) -> IndexShards:
        """Open the index at ``path``; :class:`~raydr.errors.ArtifactError` if it is not complete."""
        return cls(Artifact.open(path, "index"))

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def dim(self) -> int:
        return int(self.artifact.info["dim"])

    @property
    def factory(self) -> str:
        """The FAISS factory string that the index was made with."""
        return str(self.artifact.info["factory"])

    @property
    def score(self) -> ScoreFunction:
        """What the score of a query's and a passage's vector is."""
        return build(ScoreFunction, self.artifact.info["score"])

    @property
    def fingerprint(self) -> str:
        return self.artifact.fingerprint

    @property
    def model_fingerprint(self) -> str:
        """Fingerprint of the model that encoded the passages."""
        return str(self.artifact.info["model"])

    @property
    def corpus_fingerprint(self) -> str:
        return str(self.artifact.info["corpus"])

    def load(self, shard: int) -> Any:
        """The FAISS index of one shard; its codes are memory-mapped where the kind of index allows it.

        Raises:
            ArtifactError: FAISS cannot read the file.
        """
        faiss = load_faiss()
        path = self.artifact.local(shard_name(shard))
        try:
            return faiss.read_index(path, faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_READ_ONLY)
        except RuntimeError as error:
            raise ArtifactError(
                f"FAISS {faiss.__version__} cannot read {path}: {error}. Build the index again"
            ) from error

    def passage_ids(self, rows: NDArray[np.int64]) -> pa.Array:
        """The passage ids of some corpus rows, in the order asked for."""
        if self.num_shards == 1:
            return self._shard_ids(0).take(pa.array(rows)).combine_chunks().cast(pa.string())
        shard_of = np.searchsorted(self.starts, rows, side="right") - 1
        order = np.argsort(shard_of, kind="stable")
        pieces = [
            self._shard_ids(int(shard)).take(pa.array(rows[order[shard_of[order] == shard]] - self.starts[shard]))
            for shard in np.unique(shard_of)
        ]
        grouped = pa.concat_arrays([chunk for piece in pieces for chunk in piece.chunks]) if pieces else pa.array([])
        back = np.empty(len(rows), dtype=np.int64)
        back[order] = np.arange(len(rows))
        return grouped.cast(pa.string()).take(pa.array(back))

    def _shard_ids(self, shard: int) -> pa.ChunkedArray:
        if shard not in self._ids:
            self._ids[shard] = read_arrow(self.artifact.local(ids_name(shard))).column("passage_id")
        return self._ids[shard]
