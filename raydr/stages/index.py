"""Build a FAISS index from embeddings: one task trains, then one task a shard adds its passages."""

from __future__ import annotations

from typing import Any

from raydr.artifacts import Artifact, Building, Identity, Part, begin, record_part
from raydr.config import RunConfig
from raydr.console import progress_bar, say
from raydr.data.embeddings import Embeddings
from raydr.errors import ConfigError, DataError
from raydr.indexing.backend import load_faiss
from raydr.indexing.build import ShardPlan, fill, id_table, needs_training, plan_shards, train_index, write_index
from raydr.indexing.factory import choose_factory, make_index
from raydr.indexing.shards import TRAINED_NAME, ids_name, shard_name
from raydr.stages.failures import worker_errors
from raydr.stages.resources import cluster_capacity
from raydr.storage import Folder, write_part


def build_index(config: RunConfig, embeddings: Folder, output: Folder, overwrite: bool = False) -> Artifact:
    """Build the index of a corpus's embeddings.

    With ``index.factory: auto`` the kind of index follows from the number of passages; the choice is printed with
    its reason and stored. Vectors are never held together: a task has one part of them in memory beside its shard.

    Args:
        embeddings: Encoded passages.
        output: Where the ``index`` artefact goes.

    Raises:
        ConfigError: FAISS cannot make or train that index, or the cluster has too few CPUs for one task.
    """
    vectors = Embeddings.open(embeddings)
    if vectors.side != "passage":
        raise DataError(f"an index is built from passages, but {embeddings} holds encoded {vectors.side} texts")
    if not len(vectors):
        raise DataError(f"the embeddings at {embeddings} have no passages: there is nothing to index")
    settings = config.index
    cpus = cluster_capacity()["CPU"]
    if cpus < settings.cpus_per_task:
        raise ConfigError(f"index.cpus_per_task is {settings.cpus_per_task}, the cluster has {cpus:g} CPUs: lower it")
    factory, reason = settings.factory, "as configured"
    if factory == "auto":
        factory, reason = choose_factory(len(vectors), vectors.dim, settings.train_rows)
    trained = needs_training(factory, vectors.dim)
    layout: dict[str, Any] = {"factory": factory, "shard_rows": settings.shard_rows}
    if trained:
        layout["train_rows"] = settings.train_rows
    inputs = {
        "embeddings": vectors.fingerprint,
        "model": vectors.model_fingerprint,
        "corpus": vectors.source_fingerprint,
    }
    with begin(output, Identity(kind="index", config=layout, inputs=inputs), overwrite) as building:
        if isinstance(building, Artifact):
            say(f"index: the index at {output} is complete and of the same embeddings: reused")
            return building
        plans = plan_shards(vectors.starts, settings.shard_rows)
        say(f"index: {factory} ({reason}), {len(vectors):,} passages in {len(plans)} shards")
        with worker_errors():
            _build(building, embeddings, plans, factory, trained, settings.train_rows, settings.cpus_per_task)
        info = {
            "factory": factory,
            "reason": reason,
            "metric": "inner_product",
            "dim": vectors.dim,
            "num_rows": len(vectors),
            "num_shards": len(plans),
        }
        return building.finish(info, run_config=config.model_dump(mode="json"))


def _build(
    building: Building,
    embeddings: Folder,
    plans: list[ShardPlan],
    factory: str,
    trained: bool,
    train_rows: int,
    cpus: int,
) -> None:
    import ray

    if trained and TRAINED_NAME not in building.done:
        task = ray.remote(num_cpus=cpus)(_train)
        _take(building, ray.get(task.remote(embeddings, building.folder, factory, train_rows, cpus)))
    todo = [plan for plan in plans if not {shard_name(plan.shard), ids_name(plan.shard)} <= building.done.keys()]
    task = ray.remote(num_cpus=cpus)(_build_shard)
    pending = {task.remote(embeddings, building.folder, factory, trained, plan, cpus): plan for plan in todo}
    with progress_bar("index", total=sum(plan.rows for plan in todo), unit="passages") as bar:
        while pending:
            (done,), _ = ray.wait(list(pending), num_returns=1)
            _take(building, ray.get(done))
            bar.advance(pending.pop(done).rows)


def _take(building: Building, made: dict[str, dict[str, Any]]) -> None:
    # The worker has recorded the parts on disk already.
    building.done.update({name: Part.model_validate(record) for name, record in made.items()})


def _train(embeddings: Folder, output: Folder, factory: str, train_rows: int, cpus: int) -> dict[str, dict[str, Any]]:
    load_faiss(num_threads=cpus)
    index = train_index(factory, Embeddings.open(embeddings), train_rows)
    record = write_part(output, TRAINED_NAME, 0, lambda path: write_index(index, path))
    record_part(output, TRAINED_NAME, record)
    return {TRAINED_NAME: record}


def _build_shard(
    embeddings: Folder, output: Folder, factory: str, trained: bool, plan: ShardPlan, cpus: int
) -> dict[str, dict[str, Any]]:
    faiss = load_faiss(num_threads=cpus)
    vectors = Embeddings.open(embeddings)
    index = faiss.read_index(output.localize(TRAINED_NAME)) if trained else make_index(factory, vectors.dim)
    return write_shard(output, fill(index, vectors, plan), vectors, plan)


def write_shard(output: Folder, index: Any, vectors: Embeddings, plan: ShardPlan) -> dict[str, dict[str, Any]]:
    """Write the FAISS file and the id table of a shard; returns their records by name."""
    from raydr.data.schema import write_arrow

    ids = id_table(vectors, plan)
    made = {
        ids_name(plan.shard): write_part(output, ids_name(plan.shard), plan.rows, lambda path: write_arrow(ids, path)),
        shard_name(plan.shard): write_part(
            output, shard_name(plan.shard), plan.rows, lambda path: write_index(index, path)
        ),
    }
    for name, record in made.items():
        record_part(output, name, record)
    return made
