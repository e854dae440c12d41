"""Search an index for many queries: actors hold the shards, another merges what they find and writes the run.

A batch of queries goes to every actor; what comes back stays in Ray's object store until it is merged and
written as one part of the run. The driver sees counters only, and keeps a bounded number of batches on the way.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raydr.config.run import RunConfig
from raydr.data.embeddings import Embeddings
from raydr.errors import ConfigError, DataError, FingerprintError
from raydr.indexing.backend import has_cuda
from raydr.indexing.config import SearchConfig
from raydr.indexing.factory import EXACT, make_index, uses
from raydr.indexing.merge import Found, merge, rank_found
from raydr.indexing.search import ShardSearcher
from raydr.indexing.shards import IndexShards
from raydr.runtime.capacity import ON_DEMAND
from raydr.runtime.console import counted, progress_bar, say
from raydr.stages.failures import worker_errors
from raydr.stages.resources import cluster_capacity, node_capacities
from raydr.stages.runs import KIND, part_name, write_run_part
from raydr.stages.tasks import fetch
from raydr.store.artifact import Artifact, Building, Identity, Part, begin, record_part
from raydr.store.folder import Folder

#: Batches that are being searched or merged at a time, so that no actor waits for work.
_BATCHES_IN_FLIGHT = 4
#: Search actors whose results one merging actor keeps up with.
_SEARCHERS_PER_MERGER = 8


#: Seconds until it is said what the first batch waits for.
_FIRST_BATCH_S = 120.0


@dataclass(frozen=True)
class QueryBatch:
    """Consecutive queries of one part of the embeddings; becomes one part of the run."""

    number: int
    part: int
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """How the shards are spread: each actor holds the shards of one group."""

    groups: tuple[tuple[int, ...], ...]
    cpus: int
    gpus: int
    device: str


def search(
    config: RunConfig,
    index: Folder,
    queries: Folder,
    output: Folder,
    overwrite: bool = False,
    *,
    top_k: int | None = None,
    system: str = "dense",
) -> Artifact:
    """Find the best passages for every query.

    Args:
        queries: Encoded queries, of the model that encoded the passages.
        output: Where the ``run`` artefact goes.
        top_k: Passages a query; ``search.top_k`` if None.
        system: What the run is called in tables.

    Raises:
        FingerprintError: queries and passages were encoded by different models.
        ConfigError: the cluster cannot hold one search actor, or has no GPU that is asked for.
    """
    shards, encoded = IndexShards.open(index), Embeddings.open(queries)
    if encoded.side != "query":
        raise DataError(f"{queries} holds encoded {encoded.side} texts, expected encoded queries")
    if encoded.model_fingerprint != shards.model_fingerprint:
        raise FingerprintError(
            f"the queries at {queries} were encoded by model {encoded.model_fingerprint}, the passages of the index "
            f"at {index} by model {shards.model_fingerprint}: their vectors cannot be compared. Encode the queries "
            "with the index's model, or encode and index the passages again with the new one"
        )
    settings = config.search
    top_k = top_k or settings.top_k
    # Only what changes the result of this kind of index is part of its identity.
    relevant = {name: getattr(settings, name) for name in sorted(uses(make_index(shards.factory, shards.dim)))}
    identity = Identity(
        kind=KIND,
        config={"top_k": top_k, "batch_queries": settings.batch_queries, **relevant},
        inputs={"index": shards.fingerprint, "queries": encoded.fingerprint},
    )
    with begin(output, identity, overwrite) as building:
        if isinstance(building, Artifact):
            say(f"search: the run at {output} is complete and of the same index and queries: reused")
            return building
        batches = plan_batches(encoded, settings.batch_queries)
        layout = plan_layout(settings, shards.num_shards, shards.factory)
        with worker_errors():
            _search(building, index, queries, batches, layout, settings, top_k)
        info = {
            "system": system,
            "num_queries": len(encoded),
            "top_k": top_k,
            "factory": shards.factory,
            "num_passages": len(shards),
            "split": encoded.artifact.manifest.identity.config["split"],
        }
        return building.finish(info, run_config=config.model_dump(mode="json"))


def plan_batches(queries: Embeddings, batch_queries: int) -> list[QueryBatch]:
    """Cut the parts of the queries into batches of at most ``batch_queries``."""
    batches: list[QueryBatch] = []
    for part in range(len(queries.part_names)):
        rows = int(queries.starts[part + 1] - queries.starts[part])
        for start in range(0, rows, batch_queries):
            batches.append(QueryBatch(len(batches), part, start, min(start + batch_queries, rows)))
    return batches


def plan_layout(settings: SearchConfig, num_shards: int, factory: str) -> Layout:
    """Group the shards so that all actors fit the cluster at once, and say how.

    Raises:
        ConfigError: one actor does not fit, or CUDA is asked for and missing.
    """
    capacity = cluster_capacity()
    nodes = node_capacities()
    # Nobody waits for a GPU that was not asked for.
    gpus_there = capacity["GPU"] if settings.device == "cuda" else sum(node["GPU"] for node in nodes)
    device, reason = _choose_device(settings, gpus_there, factory)
    gpus = 1 if device == "cuda" else 0
    wanted = settings.cpus_per_actor or 1
    nodes = [node for node in nodes if node["GPU"] or not gpus]
    grows = capacity["CPU"] == ON_DEMAND
    # A cluster that grows finds a place for each.
    fit = num_shards if grows else num_places(nodes, wanted, gpus)
    if fit < 1:
        raise ConfigError(
            f"a search actor needs {wanted} CPUs{' and a GPU' if gpus else ''} of one node, the largest has "
            f"{max((node['CPU'] for node in nodes), default=0):g} CPUs: set search.cpus_per_actor lower"
        )
    num_actors = min(num_shards, fit, settings.max_actors or num_shards)
    bounds = [num_shards * actor // num_actors for actor in range(num_actors + 1)]
    groups = tuple(tuple(range(first, end)) for first, end in itertools.pairwise(bounds))
    cpus = settings.cpus_per_actor or 0
    if not cpus and grows and num_places(nodes, 1, gpus) < num_actors:
        # How far the cluster may grow is not known: so few that even one node like the smallest holds all actors.
        cpus = max(1, int(min((node["CPU"] for node in nodes if node["CPU"]), default=1) / num_actors))
    elif not cpus:
        cpus = largest_share(nodes, num_actors, gpus)
    shards, each = counted(num_shards, "shard"), f"{counted(cpus, 'CPU')}{' each' if num_actors > 1 else ''}"
    say(f"search: {shards} in {counted(num_actors, 'actor')} of {each}, on {device} ({reason})")
    return Layout(groups, cpus, gpus, device)


def num_places(nodes: Sequence[Mapping[str, float]], cpus: int, gpus: int) -> int:
    """How many actors the nodes hold at a time; one is never spread over two nodes.

    >>> num_places([{"CPU": 16, "GPU": 1}, {"CPU": 16, "GPU": 0}], cpus=5, gpus=0)
    6
    >>> num_places([{"CPU": 16, "GPU": 1}, {"CPU": 16, "GPU": 0}], cpus=5, gpus=1)
    1
    """
    return sum(min(int(node["CPU"] / cpus), int(node["GPU"] / gpus) if gpus else 10**9) for node in nodes)


def largest_share(nodes: Sequence[Mapping[str, float]], num_actors: int, gpus: int) -> int:
    """The most CPUs that each of some actors can have, if all of them are to be held at a time; at least 1.

    >>> largest_share([{"CPU": 16, "GPU": 0}, {"CPU": 16, "GPU": 0}], num_actors=3, gpus=0)
    8
    """
    most = int(max((node["CPU"] for node in nodes), default=1))
    return next((cpus for cpus in range(most, 1, -1) if num_places(nodes, cpus, gpus) >= num_actors), 1)


def _choose_device(settings: SearchConfig, gpus: float, factory: str) -> tuple[str, str]:
    missing = ""
    if gpus < 1:
        missing = "the cluster has no GPU now"
    elif settings.device != "cpu" and factory not in EXACT and not faiss_on_gpu_nodes():
        missing = f"faiss-cpu is installed there, and PyTorch searches {' and '.join(EXACT)} only, not {factory}"
    if settings.device == "cuda" and missing:
        raise ConfigError(
            f"search.device is cuda, but {missing}: set search.device=cpu, or use raydr[gpu] on nodes with a GPU"
        )
    if settings.device == "cpu":
        return "cpu", "as configured"
    if missing:
        return "cpu", missing
    return "cuda", "by FAISS if that has CUDA, else by PyTorch" if factory in EXACT else "by FAISS"


def faiss_on_gpu_nodes() -> bool:
    """Whether FAISS searches with CUDA where the GPUs are: the driver's node may have another one."""
    import ray

    say("search: asking a node with a GPU what its FAISS can")
    found: bool = fetch(ray.remote(num_cpus=0, num_gpus=1)(has_cuda).remote())
    return found


class SearchActor:
    """Holds some shards; a Ray actor."""

    def __init__(self, index: Folder, shards: tuple[int, ...], queries: Folder, config: SearchConfig, layout: Layout):
        self.searcher = ShardSearcher(IndexShards.open(index), shards, config, layout.cpus, layout.device)
        self.queries = Embeddings.open(queries)

    def search(self, batch: QueryBatch, top_k: int) -> Found:
        """The best passages of these shards for the queries of one batch."""
        return self.searcher.search(self.queries.vectors(batch.part)[batch.start : batch.stop], top_k)


class MergeActor:
    """Merges what the search actors found for a batch and writes the part of the run; a Ray actor."""

    def __init__(self, index: Folder, queries: Folder, output: Folder) -> None:
        # All threads of a search wait for its slowest one; merging takes the time that they leave.
        os.nice(5)
        self.shards = IndexShards.open(index)
        self.queries = Embeddings.open(queries)
        self.output = output

    def write(self, batch: QueryBatch, top_k: int, *parts: Found) -> dict[str, Any]:
        """Write one part; returns its record."""
        found = merge(parts, top_k)
        query_ids = self.queries.ids(batch.part).slice(batch.start, batch.stop - batch.start).combine_chunks()
        ranked = rank_found(query_ids, self.shards.passage_ids(found.rows[found.rows >= 0]), found)
        record = write_run_part(self.output, part_name(batch.number), ranked)
        record_part(self.output, part_name(batch.number), record)
        return record


def _search(
    building: Building,
    index: Folder,
    queries: Folder,
    batches: list[QueryBatch],
    layout: Layout,
    settings: SearchConfig,
    top_k: int,
) -> None:
    import ray

    todo = [batch for batch in batches if part_name(batch.number) not in building.done]
    if len(todo) < len(batches):
        say(f"search: {len(batches) - len(todo)} of {len(batches)} parts are there already, {len(todo)} to do")
    if not todo:
        return
    # An actor that dies is started again and asked again: what it does depends on its arguments only. A lost node is
    # noticed late, and until then each attempt fails at once: a number of attempts would be used up in that time.
    # Batches go in any order, since one that was lost on the way would keep the others waiting for half a minute.
    lasting = {
        "scheduling_strategy": "SPREAD",
        "max_restarts": 3,
        "max_task_retries": -1,
        "allow_out_of_order_execution": True,
    }
    hold = ray.remote(num_cpus=layout.cpus, num_gpus=layout.gpus, **lasting)(SearchActor)
    searchers = [hold.remote(index, group, queries, settings, layout) for group in layout.groups]
    # Merging is light, and must never wait for CPUs that the searchers hold.
    merging = ray.remote(num_cpus=0, **lasting)(MergeActor)
    mergers = [
        merging.remote(index, queries, building.folder) for _ in range(1 + len(searchers) // _SEARCHERS_PER_MERGER)
    ]
    waiting = list(reversed(todo))
    pending: dict[Any, QueryBatch] = {}
    begun = False
    try:
        with progress_bar("search", total=sum(batch.stop - batch.start for batch in todo), unit="queries") as bar:
            while waiting or pending:
                while waiting and len(pending) < _BATCHES_IN_FLIGHT:
                    batch = waiting.pop()
                    parts = [searcher.search.remote(batch, top_k) for searcher in searchers]
                    pending[mergers[batch.number % len(mergers)].write.remote(batch, top_k, *parts)] = batch
                finished, _ = ray.wait(list(pending), num_returns=1, timeout=None if begun else _FIRST_BATCH_S)
                begun = True
                if not finished:
                    say(_waiting(layout))
                    continue
                (done,) = finished
                batch = pending.pop(done)
                building.done[part_name(batch.number)] = Part.model_validate(ray.get(done))
                bar.advance(batch.stop - batch.start)
    finally:
        for actor in [*searchers, *mergers]:
            ray.kill(actor)


def _waiting(layout: Layout) -> str:
    each = f"{counted(layout.cpus, 'CPU')}{' and a GPU' if layout.gpus else ''}"
    return (
        f"search: no batch is done after {_FIRST_BATCH_S:.0f} s. {counted(len(layout.groups), 'actor')} of {each} must "
        "be there at a time: if the cluster cannot grow so far, set search.max_actors or search.cpus_per_actor lower"
        + (", or search.device=cpu" if layout.gpus else "")
    )
