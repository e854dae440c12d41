"""Settings of the FAISS index and of search."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from raydr.component import Config, Neutral


class IndexConfig(Config):
    """Which index is built, and in how many shards."""

    factory: str = "auto"
    """A FAISS factory string (``Flat``, ``SQfp16``, ``IVF1024,Flat``, ``IVF4096,PQ64``, ``HNSW32``), or ``auto``. Where
    passages have several vectors, ``Flat`` and ``SQfp16`` score all passages, and an index of another kind proposes
    candidates."""

    vectors: Literal["float16", "codes"] = "float16"
    """Where passages have several vectors and an index proposes candidates, what these are scored from: vectors in half
    precision beside the index, or the ``codes`` that it holds itself: residuals in 8 bits a dimension, ``IVF...,SQ8``,
    where ``factory`` is ``auto``; in fewer, for example 4, with ``IVF4096,PQ128x4``."""

    shard_rows: int = Field(default=2_000_000, ge=1)
    """Vectors in one shard, at most (passages, where they have one each, and in BM25's index); a shard is held by one
    search actor."""

    train_rows: int = Field(default=500_000, ge=1)
    """Vectors that centroids and codebooks are trained on, at most."""

    cpus_per_task: Annotated[int, Neutral] = Field(default=1, ge=1)
    """CPUs and threads of each task that builds a shard."""

    train_cpus: Annotated[int | None, Neutral] = Field(default=None, ge=1)
    """CPUs and threads of the one task that trains centroids and codebooks; null: those of the largest node, at most
    16. While no node is there, 4."""


class SearchConfig(Config):
    """How an index is searched."""

    top_k: int = Field(default=100, ge=1)
    """Passages found for each query."""

    nprobe: int = Field(default=64, ge=1)
    """Cells visited in an IVF index."""

    ef_search: int = Field(default=128, ge=1)
    """Breadth of the search in an HNSW index."""

    refine_factor: float = Field(default=4, ge=1)
    """Candidates per result that a refining index (``...,RFlat``) scores again."""

    num_nearest: int = Field(default=8192, ge=1)
    """Where passages have several vectors and an index proposes candidates: the nearest vectors looked for with each
    vector of a query; the passages that they belong to are candidates."""

    num_candidates: int = Field(default=1024, ge=1)
    """Of these passages, those that are scored for a query, by the inner products that were found."""

    batch_queries: int = Field(default=1024, ge=1)
    """Queries sent to the shards at a time."""

    max_actors: Annotated[int | None, Neutral] = Field(default=None, ge=1)
    """Search actors, at most; they share the shards, and all are there at a time. Null: on CPUs one a shard, or as many
    as the cluster (``ray.capacity``, if it grows) holds; on GPUs so many that their memory holds the shards, or one a
    GPU that is there."""

    cpus_per_actor: Annotated[int | None, Neutral] = Field(default=None, ge=1)
    """CPUs and threads of each search actor; null: the cluster's CPUs divided among the actors."""

    device: Annotated[Literal["auto", "cpu", "cuda"], Neutral] = "auto"
    """``auto``: CUDA if the cluster has a GPU (``ray.capacity``, if it grows), by FAISS if that has CUDA, else by
    PyTorch for exact kinds of index; otherwise the CPU (said in the log)."""


class RerankConfig(Config):
    """How a run is reranked, with the workers and the arithmetic of the section ``encode``."""

    depth: int = Field(default=100, ge=1)
    """Passages of each query that are scored anew, best first; what the run has below is left out."""

    model: str = "ranker"
    """The model that scores: ``ranker``, the config's cross-encoder, another cross-encoder's name (``ranker-...``), or
    a retriever's, by its score function."""
