"""Build a FAISS index from embeddings: one task trains, then one task a shard adds its passages.

The embeddings may still be made by another thread meanwhile: then each shard is built as soon as its parts are there.
"""

from __future__ import annotations

from typing import Any

from raydr.config.run import RunConfig
from raydr.data.embeddings import Embeddings
from raydr.data.growing_embeddings import GrowingEmbeddings
from raydr.errors import ConfigError, DataError
from raydr.indexing.backend import load_faiss
from raydr.indexing.build import ShardPlan, fill, id_table, needs_training, plan_shards, train_index, write_index
from raydr.indexing.factory import make_index, resolve_factory
from raydr.indexing.shards import TRAINED_NAME, ids_name, shard_name
from raydr.runtime.console import progress_bar, say
from raydr.stages.failures import worker_errors
from raydr.stages.resources import cluster_capacity
from raydr.store.artifact import Artifact, Building, Identity, Part, begin, record_part
from raydr.store.folder import Folder, write_part

#: Seconds between looks for finished parts while shards are being built.
_LOOK = 0.2


def build_index(
    config: RunConfig,
    embeddings: Folder,
    output: Folder,
    overwrite: bool = False,
    growing: GrowingEmbeddings | None = None,
) -> Artifact:
    """Build the index of a corpus's embeddings.

    With ``index.factory: auto`` the kind of index follows from the number of passages; the choice is printed with
    its reason and stored. Vectors are never held together: a task has one part of them in memory beside its shard.

    Args:
        embeddings: Encoded passages.
        output: Where the ``index`` artefact goes.
        growing: The embeddings, if another thread is making them now. An index that has to be trained waits for all of
            them, because its sample is drawn from all.

    Raises:
        ArtifactError: the embeddings are not there, or whoever made them ended before all were.
        ConfigError: FAISS cannot make or train that index, or the cluster has too few CPUs for one task.
    """
    vectors = growing.view() if growing is not None and growing.wait_for_first() else Embeddings.open(embeddings)
    if vectors.side != "passage":
        raise DataError(f"an index is built from passages, but {embeddings} holds encoded {vectors.side} texts")
    if not len(vectors):
        raise DataError(f"the embeddings at {embeddings} have no passages: there is nothing to index")
    settings = config.index
    cpus = cluster_capacity()["CPU"]
    if cpus < settings.cpus_per_task:
        raise ConfigError(f"index.cpus_per_task is {settings.cpus_per_task}, the cluster has {cpus:g} CPUs: lower it")
    score = config.model.score
    factory, reason = resolve_factory(settings, len(vectors), vectors.dim, score)
    trained = needs_training(factory, vectors.dim)
    layout: dict[str, Any] = {"factory": factory, "shard_rows": settings.shard_rows}
    if trained:
        layout["train_rows"] = settings.train_rows
    if trained and growing is not None:
        growing.wait_until_closed()
        vectors = Embeddings.open(embeddings)
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
            if trained and TRAINED_NAME not in building.done:
                _train(building, vectors, factory, settings.train_rows, settings.cpus_per_task)
            _build(building, vectors, growing, plans, factory, trained, settings.cpus_per_task)
        info = {
            "factory": factory,
            "reason": reason,
            "score": score.model_dump(),
            "dim": vectors.dim,
            "num_rows": len(vectors),
            "num_shards": len(plans),
        }
        return building.finish(info, run_config=config.model_dump(mode="json"))


def _train(building: Building, vectors: Embeddings, factory: str, train_rows: int, cpus: int) -> None:
    import ray

    task = ray.remote(num_cpus=cpus)(_train_and_write)
    _take(building, ray.get(task.remote(vectors, building.folder, factory, train_rows, cpus)))


def _build(
    building: Building,
    vectors: Embeddings,
    growing: GrowingEmbeddings | None,
    plans: list[ShardPlan],
    factory: str,
    trained: bool,
    cpus: int,
) -> None:
    import ray

    waiting = [plan for plan in plans if not {shard_name(plan.shard), ids_name(plan.shard)} <= building.done.keys()]
    task = ray.remote(num_cpus=cpus)(_build_shard)
    pending: dict[Any, ShardPlan] = {}
    with progress_bar("index", total=sum(plan.rows for plan in waiting), unit="passages") as bar:
        while waiting or pending:
            known = len(growing.finished()) if growing is not None else 0
            ready, vectors = _ready(waiting, vectors, growing)
            # Once for all tasks: the manifest of a large corpus is large as well.
            shared = ray.put(vectors) if ready else None
            for plan in ready:
                waiting.remove(plan)
                pending[task.remote(shared, building.folder, factory, trained, plan, cpus)] = plan
            if pending:
                for done in ray.wait(list(pending), num_returns=1, timeout=_LOOK if waiting else None)[0]:
                    _take(building, ray.get(done))
                    bar.advance(pending.pop(done).rows)
            elif growing is not None:
                growing.wait_for_more(known)


def _ready(
    waiting: list[ShardPlan], vectors: Embeddings, growing: GrowingEmbeddings | None
) -> tuple[list[ShardPlan], Embeddings]:
    """The shards whose parts are all there, and the embeddings to build them from."""
    if growing is None or not waiting:
        return list(waiting), vectors
    if growing.closed:
        # Complete now, or this says that they are not.
        return list(waiting), Embeddings.open(vectors.artifact.folder)
    there = growing.finished()
    names = vectors.part_names
    ready = [plan for plan in waiting if there.issuperset(names[plan.first_part : plan.end_part])]
    return ready, growing.view() if ready else vectors


def _take(building: Building, made: dict[str, dict[str, Any]]) -> None:
    # The worker has recorded the parts on disk already.
    building.done.update({name: Part.model_validate(record) for name, record in made.items()})


def _train_and_write(
    vectors: Embeddings, output: Folder, factory: str, train_rows: int, cpus: int
) -> dict[str, dict[str, Any]]:
    load_faiss(num_threads=cpus)
    index = train_index(factory, vectors, train_rows)
    record = write_part(output, TRAINED_NAME, 0, lambda path: write_index(index, path))
    record_part(output, TRAINED_NAME, record)
    return {TRAINED_NAME: record}


def _build_shard(
    vectors: Embeddings, output: Folder, factory: str, trained: bool, plan: ShardPlan, cpus: int
) -> dict[str, dict[str, Any]]:
    faiss = load_faiss(num_threads=cpus)
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
