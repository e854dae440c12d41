"""FAISS index of embeddings: a task trains it, then a task per shard adds passages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

from raydr.artefacts import Context, Node, artefact
from raydr.artefacts import embeddings as encode
from raydr.artefacts.dataset import declare_corpus
from raydr.component import Neutral
from raydr.console import counted, detail, say
from raydr.data.embeddings import Embeddings
from raydr.distributed.parts import make_parts, write_table
from raydr.distributed.pool import Needs, Pool
from raydr.distributed.resources import IF_IT_GROWS, cluster_capacity, node_capacities
from raydr.errors import ConfigError, DataError
from raydr.indexing.build import (
    ShardPlan,
    build_memory,
    fill,
    id_table,
    index_bytes,
    needs_training,
    plan_shards,
    train_index,
    write_index,
    write_sets,
)
from raydr.indexing.config import IndexConfig
from raydr.indexing.faiss_backend import EXACT, faiss_threads, load_faiss, make_index, resolve_factory
from raydr.indexing.shards import TRAINED_NAME, ids_name, shard_name, vectors_name
from raydr.models.config import read_config
from raydr.models.scores.base import ScoreFunction
from raydr.models.scores.dual import Dual
from raydr.store import Artifact, Building, Folder, Part
from raydr.store.building import write_and_record

#: Maximum of threads of k-means: more gain little, and few nodes have more.
MOST_TRAIN_CPUS = 16
#: Assumed CPUs of a node of a growing cluster without nodes.
_CPUS_OF_A_NODE = 4


def of_model(run: Context, model: Node, name: str) -> Node:
    """Return the node of the index of a model's passage vectors."""
    return of_vectors(run, encode.passages(run, model, name), name, run.config.model.score.passage_vectors.several)


def of_vectors(run: Context, vectors: Node, name: str, several: bool = False) -> Node:
    """Return the node of the index of passage vectors; ``several`` if a passage has several vectors."""
    settings = run.config.index
    return build_index.node(
        run.label("index", name),
        embeddings=vectors,
        corpus=declare_corpus(run),
        model=vectors.inputs.get("model"),
        # With a vector per passage, no vectors are stored beside the index.
        settings=settings if several else settings.model_copy(update={"vectors": IndexConfig().vectors}),
        demand={"CPU": float(settings.cpus_per_task)},
    )


@artefact("index", rows=lambda of: of.embeddings.rows(), temporary=True)
def build_index(
    making: Building,
    pool: Pool,
    embeddings: Artifact,
    corpus: Artifact | None = None,
    model: Artifact | None = None,
    *,
    settings: IndexConfig,
    score: Annotated[ScoreFunction | None, Neutral] = None,
) -> dict[str, Any]:
    """Build the index of a corpus's embeddings: an ``index`` artefact.

    With ``index.factory: auto`` the number of passages chooses the kind of index; the choice and its reason are printed
    and stored. A task holds its shard and a single part of the vectors.

    Args:
        making: artefact to make.
        pool: pool that builds shards.
        embeddings: vectors of the passages.
        settings: kind of index and size of shards.
        corpus: passages.
        model: model of the vectors; None for imported vectors, which are compared by inner product.
        score: score function; that of the model if None.

    Raises:
        ConfigError: FAISS cannot make or train the index, or the cluster has too few CPUs for a task.
        DataError: there are no passages.
    """
    vectors = Embeddings(embeddings)
    score = score or (Dual() if model is None else read_config(model.local_folder()).score)
    if not len(vectors):
        raise DataError(f"the embeddings at {embeddings.folder} have no passages: there is nothing to index")
    cpus = settings.cpus_per_task
    for key in ("cpus_per_task", "train_cpus"):
        num_cpus = getattr(settings, key) or 1
        if not pool.here and (total := cluster_capacity()["CPU"]) < num_cpus:
            raise ConfigError(f"index.{key} is {num_cpus}, the cluster has {total:g} CPUs: lower it {IF_IT_GROWS}")
    num_vectors = vectors.num_vectors
    factory, reason = resolve_factory(settings, num_vectors, vectors.dim, score)
    # `settings.shard_rows` counts vectors.
    shard_rows = max(1, settings.shard_rows * len(vectors) // max(1, num_vectors))
    plans = plan_shards(vectors.starts, shard_rows, vectors.partitions)
    several = f" of {num_vectors:,} vectors" if vectors.several else ""
    say(f"index: {factory}, {len(vectors):,} passages{several} in {counted(len(plans), 'shard')}")
    detail(f"index: {factory} since {reason}")
    trained = needs_training(factory, vectors.dim)
    if trained:
        threads = _train_cpus(settings, pool)
        work = (vectors, factory, settings.train_rows, threads)
        make_parts(making, pool, _train, {TRAINED_NAME: work}, "index: train", Needs(threads))
    kept = _files(vectors.several, factory, settings)
    shards = {ids_name(plan.shard): (vectors, factory, kept, trained, plan, cpus) for plan in plans}
    most = max(plan.rows for plan in plans) * num_vectors // len(vectors)
    memory = build_memory(most, index_bytes(factory, vectors.dim)[0]) if "faiss" in kept else 0
    make_parts(making, pool, _build_shard, shards, "index: shards", Needs(cpus, memory=memory))
    return {
        "factory": factory,
        "reason": reason,
        "score": score.model_dump(mode="json"),
        "dim": vectors.dim,
        "several": vectors.several,
        "vectors": settings.vectors if vectors.several else "float16",
        "num_rows": len(vectors),
        "num_vectors": num_vectors,
        "num_shards": len(plans),
        "model": vectors.model_fingerprint,
        "corpus": vectors.source_fingerprint,
        **({"partitions": [plan.partition for plan in plans]} if any(vectors.partitions) else {}),
    }


def _train_cpus(settings: IndexConfig, pool: Pool) -> int:
    if settings.train_cpus is not None:
        return settings.train_cpus
    if pool.here:
        return min(MOST_TRAIN_CPUS, os.cpu_count() or 1)
    largest = max((node["CPU"] for node in node_capacities()), default=0.0)
    return int(min(MOST_TRAIN_CPUS, max(1.0, largest or min(_CPUS_OF_A_NODE, cluster_capacity()["CPU"]))))


def _files(several: bool, factory: str, settings: IndexConfig) -> frozenset[str]:
    """Return the files of a shard: a FAISS file, the vectors of its passages, or both."""
    if not several:
        return frozenset({"faiss"})
    if factory in EXACT:
        return frozenset({"vectors"})
    return frozenset({"faiss"} if settings.vectors == "codes" else {"faiss", "vectors"})


def _train(
    folder: Folder, name: str, vectors: Embeddings, factory: str, train_rows: int, cpus: int
) -> Mapping[str, Part]:
    with faiss_threads(cpus):
        index = train_index(factory, vectors, train_rows)
    return {name: write_and_record(folder, name, 0, lambda path: write_index(index, path))}


def _build_shard(
    folder: Folder,
    name: str,
    vectors: Embeddings,
    factory: str,
    kept: frozenset[str],
    trained: bool,
    plan: ShardPlan,
    cpus: int,
) -> Mapping[str, Part]:
    """Write the files of a shard; the id table, which marks it complete, comes last."""
    made: dict[str, Part] = {}
    if "vectors" in kept:
        file = vectors_name(plan.shard)
        made[file] = write_and_record(folder, file, plan.rows, lambda path: write_sets(vectors, plan, path))
    if "faiss" in kept:
        faiss = load_faiss()
        empty = faiss.read_index(folder.localize(TRAINED_NAME)) if trained else make_index(factory, vectors.dim)
        with faiss_threads(cpus):
            index, file = fill(empty, vectors, plan), shard_name(plan.shard)
        made[file] = write_and_record(folder, file, plan.rows, lambda path: write_index(index, path))
    made[name] = write_table(folder, name, id_table(vectors, plan))
    return made
