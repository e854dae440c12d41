"""Building a FAISS index from embeddings in pieces: plan, train, fill a shard at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydr.data.embeddings import Embeddings, to_column
from raydr.errors import ConfigError, DataError
from raydr.indexing.faiss_backend import load_faiss, make_index

#: Bytes of a process that builds a shard, with its libraries and a part of the vectors.
_MEMORY_BASE = 2**29


@dataclass(frozen=True)
class ShardPlan:
    """Consecutive parts of the embeddings that form a shard."""

    shard: int
    first_part: int
    #: Part after the last part.
    end_part: int
    rows: int
    #: Partition of all its passages; empty without partitions.
    partition: str = ""


def plan_shards(starts: NDArray[np.int64], shard_rows: int, partitions: Sequence[str] = ()) -> list[ShardPlan]:
    """Group consecutive parts into shards of at most ``shard_rows`` passages; a larger part is its own shard.

    Args:
        starts: row at which each part starts, and the total at the end.
        shard_rows: passages of a shard.
        partitions: partition of each part, which a shard never mixes; empty without partitions.

    >>> [(plan.first_part, plan.end_part, plan.rows) for plan in plan_shards(np.array([0, 10, 20, 30]), 25)]
    [(0, 2, 20), (2, 3, 10)]
    """
    plans: list[ShardPlan] = []
    first = 0
    num_parts = len(starts) - 1
    partitions = partitions or [""] * num_parts
    for end in range(1, num_parts + 1):
        full = end < num_parts and starts[end + 1] - starts[first] > shard_rows
        if full or end == num_parts or partitions[end] != partitions[first]:
            plans.append(ShardPlan(len(plans), first, end, int(starts[end] - starts[first]), partitions[first]))
            first = end
    return plans


def sample_rows(num_rows: int, train_rows: int) -> NDArray[np.int64]:
    """Return the training rows: all, or ``train_rows`` evenly spread; deterministic.

    >>> sample_rows(10, 4).tolist()
    [0, 2, 5, 7]
    """
    num = min(num_rows, train_rows)
    return np.arange(num, dtype=np.int64) * num_rows // max(num, 1)


def needs_training(factory: str, dim: int) -> bool:
    """Return whether the index has centroids or codebooks to learn.

    >>> needs_training("SQfp16", 8), needs_training("IVF4,Flat", 8)
    (False, True)
    """
    return not make_index(factory, dim).is_trained


def train_index(factory: str, embeddings: Embeddings, train_rows: int) -> Any:
    """Train the centroids and codebooks of an empty index on a sample of the embeddings.

    Raises:
        ConfigError: the index needs more vectors.
    """
    index = make_index(factory, embeddings.dim)
    sample = _sample(embeddings, train_rows).astype(np.float32)
    try:
        index.train(sample)
    except RuntimeError as error:
        reason = str(error).rsplit(": ", 1)[-1]
        raise ConfigError(
            f"index.factory {factory!r} cannot be trained on {len(sample):,} vectors of {embeddings.num_vectors:,} "
            f"({reason}): use fewer cells, Flat, or auto"
        ) from error
    return index


def _sample(embeddings: Embeddings, train_rows: int) -> NDArray[np.float16]:
    """Sample evenly spread vectors; with several vectors a text, proportionally from each part."""
    if not embeddings.several:
        return embeddings.take(sample_rows(len(embeddings), train_rows))
    share = min(1.0, train_rows / max(1, embeddings.num_vectors))
    parts = [embeddings.vectors(part) for part in range(len(embeddings.part_names))]
    return np.concatenate(
        [vectors_ND[sample_rows(len(vectors_ND), int(share * len(vectors_ND)))] for vectors_ND in parts]
    )


def fill(index: Any, embeddings: Embeddings, plan: ShardPlan) -> Any:
    """Add the passages of a shard to an empty, trained index, with one part in memory."""
    rows = 0
    for part in range(plan.first_part, plan.end_part):
        index.add(embeddings.vectors(part).astype(np.float32))
        rows += len(embeddings.ids(part))
    if rows != plan.rows:
        raise DataError(
            f"shard {plan.shard} of the index has {rows:,} passages, but the manifest of the embeddings at "
            f"{embeddings.artifact.folder} has {plan.rows:,}: encode again with --again"
        )
    return index


def write_index(index: Any, path: str) -> None:
    """Write a FAISS file."""
    load_faiss().write_index(index, path)


def write_sets(embeddings: Embeddings, plan: ShardPlan, path: str) -> None:
    """Write the vector sets of a shard's passages, with one part in memory."""
    schema = pa.schema([("vectors", to_column(embeddings.sets(plan.first_part)).type)])
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as file:
        for part in range(plan.first_part, plan.end_part):
            file.write_batch(pa.record_batch([to_column(embeddings.sets(part))], schema=schema))


def id_table(embeddings: Embeddings, plan: ShardPlan) -> pa.Table:
    """Return the passage id of each row of a shard, and its number of vectors if there are several."""
    parts = range(plan.first_part, plan.end_part)
    ids = pa.chunked_array([chunk for part in parts for chunk in embeddings.ids(part).chunks], type=pa.string())
    columns = {"row": pa.array(np.arange(plan.rows, dtype=np.int64)), "passage_id": ids}
    if embeddings.several:
        columns["num_vectors"] = pa.array(np.concatenate([embeddings.sets(part).lengths for part in parts]))
    return pa.table(columns)


def index_bytes(factory: str, dim: int) -> tuple[float, int]:
    """Return the bytes of a vector in an index, and the number of its cells (0 if it has none).

    >>> index_bytes("Flat", 768), index_bytes("IVF1024,SQfp16", 768), index_bytes("IVF64,PQ32", 768)
    ((3072.0, 0), (1544.0, 1024), (40.0, 64))
    """
    faiss = load_faiss()
    whole = make_index(factory, dim)
    # Keep `whole` alive: it owns the C++ object.
    index = faiss.downcast_index(whole)
    if isinstance(index, faiss.IndexPreTransform):
        index = faiss.downcast_index(index.index)
    refined = 0.0
    if isinstance(index, faiss.IndexRefine):
        refined = float(faiss.downcast_index(index.refine_index).sa_code_size())
        index = faiss.downcast_index(index.base_index)
    if isinstance(index, faiss.IndexIVF):
        # Each code in a cell has an id of 8 bytes.
        return float(index.code_size) + 8 + refined, int(index.nlist)
    if isinstance(index, (faiss.IndexHNSW, faiss.IndexNSG)):
        # Neighbours: 2 M on the lowest level, M on each higher level; a vector has 1 / (M - 1) of these.
        neighbours = float(index.hnsw.nb_neighbors(0) if isinstance(index, faiss.IndexHNSW) else index.nsg.R)
        return float(faiss.downcast_index(index.storage).sa_code_size()) + 4 * neighbours * 1.1 + refined, 0
    return float(index.sa_code_size()) + refined, 0


def build_memory(num_vectors: int, vector_bytes: float) -> int:
    """Return the memory in bytes that the build of a shard needs: FAISS copies an array that grows."""
    return _MEMORY_BASE + int(2 * num_vectors * vector_bytes)
