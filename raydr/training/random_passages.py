"""Passages of the corpus, or of a query's partition, drawn at random for it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raydr.data.corpus import Corpus
from raydr.data.examples import Examples
from raydr.errors import DataError

#: Draws for one passage before it is concluded that there is none to draw.
_DRAWS = 1000


def random_rows(examples: Examples, corpus: Corpus, at: int, num: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Corpus rows drawn uniformly, with replacement, none of them a known positive or dropped for the query.

    Raises:
        DataError: the corpus, or the query's partition, has next to nothing else.
    """
    rows, pool = np.zeros(0, dtype=np.int64), examples.pool(at)
    forbidden = np.asarray(examples.forbidden[at], dtype=np.int64)
    for _ in range(_DRAWS):
        if len(rows) == num:
            return rows
        drawn = pool.rows(rng.integers(max(1, len(pool)), size=num - len(rows)))
        allowed = ~np.isin(corpus.content_hashes(drawn).view(np.int64), forbidden)
        rows = np.concatenate([rows, drawn[allowed]])
    partition = f" of partition {examples.partitions[at]!r}" if len(pool) < len(corpus) else ""
    raise DataError(
        f"query {examples.query_ids[at]}: {num} random negatives are needed, and next to all of the {len(pool)} "
        f"passages{partition} are its positives or were dropped for it; take a larger corpus, or a judge that drops "
        "less" + (", or set partition.negatives to split or all" if partition else "")
    )
