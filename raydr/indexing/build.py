"""Building a FAISS index from embeddings without holding them: plan, train, one shard at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydr.data.embeddings import Embeddings
from raydr.errors import ConfigError, DataError
from raydr.indexing.backend import load_faiss
from raydr.indexing.factory import make_index


@dataclass(frozen=True)
class ShardPlan:
    """Consecutive parts of the embeddings that become one shard."""

    shard: int
    first_part: int
    #: One past the last part.
    end_part: int
    #: Corpus row of its first passage.
    first_row: int
    rows: int


def plan_shards(starts: NDArray[np.int64], shard_rows: int) -> list[ShardPlan]:
    """Group parts, in order, into shards of at most ``shard_rows`` passages (a larger part is one by itself).

    Args:
        starts: Row at which each part starts, and the total at the end.

    >>> [(plan.first_part, plan.end_part, plan.rows) for plan in plan_shards(np.array([0, 10, 20, 30]), 25)]
    [(0, 2, 20), (2, 3, 10)]
    """
    plans: list[ShardPlan] = []
    first = 0
    num_parts = len(starts) - 1
    for end in range(1, num_parts + 1):
        full = end < num_parts and starts[end + 1] - starts[first] > shard_rows
        if full or end == num_parts:
            rows = int(starts[end] - starts[first])
            plans.append(ShardPlan(len(plans), first, end, int(starts[first]), rows))
            first = end
    return plans


def sample_rows(num_rows: int, train_rows: int) -> NDArray[np.int64]:
    """Rows to train on: all of them, or ``train_rows`` spread evenly; the same every time.

    >>> sample_rows(10, 4).tolist()
    [0, 2, 5, 7]
    """
    num = min(num_rows, train_rows)
    return np.arange(num, dtype=np.int64) * num_rows // max(num, 1)


def needs_training(factory: str, dim: int) -> bool:
    """Whether the index has centroids or codebooks to learn.

    >>> needs_training("SQfp16", 8), needs_training("IVF4,Flat", 8)
    (False, True)
    """
    return not make_index(factory, dim).is_trained


def train_index(factory: str, embeddings: Embeddings, train_rows: int) -> Any:
    """An empty index whose centroids and codebooks are learned from a sample of the embeddings.

    Raises:
        ConfigError: there are fewer vectors than the index needs.
    """
    index = make_index(factory, embeddings.dim)
    sample = embeddings.take(sample_rows(len(embeddings), train_rows)).astype(np.float32)
    try:
        index.train(sample)
    except RuntimeError as error:
        reason = str(error).rsplit(": ", 1)[-1]
        raise ConfigError(
            f"index.factory {factory!r} cannot be trained on {len(sample):,} vectors of {len(embeddings):,} "
            f"({reason}): choose fewer cells, Flat, or auto"
        ) from error
    return index


def fill(index: Any, embeddings: Embeddings, plan: ShardPlan) -> Any:
    """Add the passages of one shard to an empty, trained index; one part is in memory at a time."""
    for part in range(plan.first_part, plan.end_part):
        index.add(embeddings.vectors(part).astype(np.float32))
    if index.ntotal != plan.rows:
        raise DataError(
            f"shard {plan.shard} of the index has {index.ntotal:,} passages, the manifest of the embeddings at "
            f"{embeddings.artifact.folder} says {plan.rows:,}: encode again with --again"
        )
    return index


def write_index(index: Any, path: str) -> None:
    """Write a FAISS file."""
    load_faiss().write_index(index, path)


def id_table(embeddings: Embeddings, plan: ShardPlan) -> pa.Table:
    """The passage id of every row of a shard."""
    chunks = [chunk for part in range(plan.first_part, plan.end_part) for chunk in embeddings.ids(part).chunks]
    ids = pa.chunked_array(chunks, type=pa.string())
    return pa.table({"row": pa.array(np.arange(plan.rows, dtype=np.int64)), "passage_id": ids})
