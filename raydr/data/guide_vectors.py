"""The vectors of a guide, a model that is asked what looks like a positive, by training example and corpus row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydr.data.embeddings import Embeddings
from raydr.errors import DataError


@dataclass(frozen=True)
class GuideOfExamples:
    """The guide's vectors in the order of some training examples.

    Args:
        queries: its vectors of the split's queries.
        query_rows: of each example among them.
        passages: its vectors of the corpus, in the order of its rows.
    """

    queries: Embeddings
    query_rows: NDArray[np.int64]
    passages: Embeddings

    def of_queries(self, at: NDArray[np.int64]) -> NDArray[np.float16]:
        """Vectors of the queries of some examples, shape (Q, dim)."""
        return self.queries.take(self.query_rows[at])

    def of_passages(self, rows: NDArray[np.int64]) -> NDArray[np.float16]:
        """Vectors of some corpus rows, shape (P, dim)."""
        return self.passages.take(rows)


@dataclass(frozen=True)
class GuideVectors:
    """The guide's vectors of the queries of a split and of the corpus."""

    queries: Embeddings
    passages: Embeddings

    def beside(self, query_ids: Sequence[str]) -> GuideOfExamples:
        """Laid beside training examples.

        Args:
            query_ids: of the examples.

        Raises:
            DataError: a query has no vector.
        """
        parts = [self.queries.ids(part).combine_chunks() for part in range(len(self.queries.part_names))]
        rows = pc.index_in(pa.array(query_ids, pa.string()), value_set=pa.concat_arrays(parts))
        if rows.null_count:
            missing = query_ids[rows.is_null().to_numpy(zero_copy_only=False).argmax()]
            raise DataError(f"the guide's vectors at {self.queries.artifact.folder} have none of query {missing!r}")
        return GuideOfExamples(self.queries, rows.to_numpy().astype(np.int64), self.passages)
