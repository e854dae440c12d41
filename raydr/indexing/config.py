"""Settings of the FAISS index and of search."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from raydr.component import Config, Neutral


class IndexConfig(Config):
    """Kind and sharding of the index."""

    factory: str = "auto"
    """FAISS factory string (``Flat``, ``SQfp16``, ``IVF1024,Flat``, ``IVF4096,PQ64``, ``HNSW32``), or ``auto``. For
    passages with several vectors, ``Flat`` and ``SQfp16`` score all passages; other indexes propose candidates."""

    vectors: Literal["float16", "codes"] = "float16"
    """Vectors that score candidates of passages with several vectors: ``float16`` vectors beside the index, or the
    ``codes`` in it. The codes are residuals of 8 bits a dimension (``IVF...,SQ8``) for ``factory`` ``auto``; fewer
    bits, for example 4, with ``IVF4096,PQ128x4``."""

    shard_rows: int = Field(default=2_000_000, ge=1)
    """Maximum of vectors in a shard (passages, if each has a single vector); a search actor holds whole shards."""

    train_rows: int = Field(default=500_000, ge=1)
    """Maximum of vectors for training centroids and codebooks."""

    cpus_per_task: Annotated[int, Neutral] = Field(default=1, ge=1)
    """CPUs and threads of each task that builds a shard."""

    train_cpus: Annotated[int | None, Neutral] = Field(default=None, ge=1)
    """CPUs and threads of the task that trains centroids and codebooks; null: the CPUs of the largest node, at most 16,
    or 4 before a node has started."""


class SearchConfig(Config):
    """Search of an index."""

    top_k: int = Field(default=100, ge=1, le=1_000_000)
    """Passages returned for each query."""

    nprobe: int = Field(default=64, ge=1)
    """Cells visited in an IVF index."""

    ef_search: int = Field(default=128, ge=1)
    """Breadth of the search in an HNSW index."""

    refine_factor: float = Field(default=4, ge=1)
    """Candidates per result that a refining index (``...,RFlat``) scores again."""

    num_nearest: int = Field(default=8192, ge=1)
    """For passages with several vectors and an index that proposes candidates: nearest vectors looked up for each query
    vector; their passages are candidates."""

    num_candidates: int = Field(default=1024, ge=1)
    """Candidates scored for a query, the best by the inner products returned."""

    batch_queries: int = Field(default=1024, ge=1)
    """Queries sent to the shards at a time."""

    max_actors: Annotated[int | None, Neutral] = Field(default=None, ge=1)
    """Maximum of search actors, which share the shards and run concurrently. Null: on CPUs one per shard, or as many as
    the cluster (``ray.capacity``, if it grows) holds; on GPUs as many as hold the shards in memory, or one per GPU."""

    cpus_per_actor: Annotated[int | None, Neutral] = Field(default=None, ge=1)
    """CPUs and threads of each search actor; null: the cluster's CPUs divided among the actors."""

    device: Annotated[Literal["auto", "cpu", "cuda"], Neutral] = "auto"
    """``auto``: CUDA if the cluster has a GPU (``ray.capacity``, if it grows), through FAISS if it supports CUDA, else
    through PyTorch for exact indexes; otherwise the CPU. The log names the choice."""


class RerankConfig(Config):
    """Reranking of a run, with the workers and arithmetic of the section ``encode``."""

    depth: int = Field(default=100, ge=1)
    """Best passages of each query that are scored again; the rest of the run is dropped."""

    model: str = "ranker"
    """Scoring model: ``ranker``, the config's cross-encoder, another cross-encoder (``ranker-...``), or a retriever, by
    its score function."""
