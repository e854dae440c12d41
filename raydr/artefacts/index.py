"""Build a FAISS index from embeddings: one task trains, then one task a shard adds its passages."""

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
    fill,
    id_table,
    needs_training,
    plan_shards,
    train_index,
    write_index,
    write_sets,
)
from raydr.indexing.config import IndexConfig
from raydr.indexing.faiss_backend import EXACT, load_faiss, make_index, resolve_factory
from raydr.indexing.shards import TRAINED_NAME, ids_name, shard_name, vectors_name
from raydr.models.config import read_config
from raydr.models.scores.base import ScoreFunction
from raydr.models.scores.dual import Dual
from raydr.store import Artifact, Building, Folder, Part
from raydr.store.building import write_and_record

#: More threads than these hardly shorten k-means, and more nodes have so many CPUs.
MOST_TRAIN_CPUS = 16
#: CPUs that a node of a cluster that grows is taken to have, before there is one.
_CPUS_OF_A_NODE = 4


def of_model(run: Context, model: Node, name: str) -> Node:
    """The FAISS index over a model's passage vectors."""
    return of_vectors(run, encode.passages(run, model, name), name, run.config.model.score.passage_vectors.several)


def of_vectors(run: Context, vectors: Node, name: str, several: bool = False) -> Node:
    """The FAISS index over passage vectors, for example of another program; ``several`` a passage or one."""
    settings = run.config.index
    return build_index.node(
        run.label("index", name),
        embeddings=vectors,
        corpus=declare_corpus(run),
        model=vectors.inputs.get("model"),
        # Where a passage has a single vector, nothing is scored from what lies beside the index.
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

    With ``index.factory: auto`` the kind of index follows from the number of passages; the choice is printed with
    its reason and stored. Vectors are never held together: a task has one part of them in memory beside its shard.

    Args:
        making: the artefact.
        pool: where shards are built.
        embeddings: encoded passages.
        settings: the kind of index and the size of a shard.
        corpus: the passages.
        model: made the embeddings; None: another program did, and vectors are compared by their inner product.
        score: of the model; read from it if None.

    Raises:
        ConfigError: FAISS cannot make or train that index, or the cluster has too few CPUs for one task.
        DataError: there are no passages.
    """
    vectors = Embeddings(embeddings)
    score = score or (Dual() if model is None else read_config(model.local_folder()).score)
    if not len(vectors):
        raise DataError(f"the embeddings at {embeddings.folder} have no passages: there is nothing to index")
    cpus = settings.cpus_per_task
    for key in ("cpus_per_task", "train_cpus"):
        asked = getattr(settings, key) or 1
        if not pool.here and cluster_capacity()["CPU"] < asked:
            there = cluster_capacity()["CPU"]
            raise ConfigError(f"index.{key} is {asked}, the cluster has {there:g} CPUs: lower it {IF_IT_GROWS}")
    num_vectors = vectors.num_vectors
    factory, reason = resolve_factory(settings, num_vectors, vectors.dim, score)
    # So many passages that their vectors are as many.
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
    make_parts(making, pool, _build_shard, shards, "index: shards", Needs(cpus))
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
    largest = max(node["CPU"] for node in node_capacities())
    return int(min(MOST_TRAIN_CPUS, max(1.0, largest or min(_CPUS_OF_A_NODE, cluster_capacity()["CPU"]))))


def _files(several: bool, factory: str, settings: IndexConfig) -> frozenset[str]:
    """What a shard has besides its ids: a FAISS file, the vectors of its passages, or both."""
    if not several:
        return frozenset({"faiss"})
    if factory in EXACT:
        return frozenset({"vectors"})
    return frozenset({"faiss"} if settings.vectors == "codes" else {"faiss", "vectors"})


def _train(
    folder: Folder, name: str, vectors: Embeddings, factory: str, train_rows: int, cpus: int
) -> Mapping[str, Part]:
    load_faiss(num_threads=cpus)
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
    """The files of a shard; its id table, which says that it is there, comes last."""
    made: dict[str, Part] = {}
    if "vectors" in kept:
        file = vectors_name(plan.shard)
        made[file] = write_and_record(folder, file, plan.rows, lambda path: write_sets(vectors, plan, path))
    if "faiss" in kept:
        faiss = load_faiss(num_threads=cpus)
        empty = faiss.read_index(folder.localize(TRAINED_NAME)) if trained else make_index(factory, vectors.dim)
        index, file = fill(empty, vectors, plan), shard_name(plan.shard)
        made[file] = write_and_record(folder, file, plan.rows, lambda path: write_index(index, path))
    made[name] = write_table(folder, name, id_table(vectors, plan))
    return made
