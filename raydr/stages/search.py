"""Search an index for many queries: some hold the shards, another merges what they find and writes the run.

On Ray these are actors. A batch of queries goes to every one that holds shards; what comes back stays in Ray's object
store until it is merged and written as one part of the run. The driver sees counters only, and keeps a bounded number
of batches on the way. In this process one holds all shards, and batches follow one another.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from raydr.data.embeddings import Embeddings
from raydr.errors import ConfigError
from raydr.indexing.config import SearchConfig
from raydr.indexing.factory import make_index, uses
from raydr.indexing.merge import Found, merge, rank_found
from raydr.indexing.search import ShardSearcher
from raydr.indexing.shards import IndexShards
from raydr.runtime.console import counted, progress_bar, say
from raydr.stages.failures import worker_errors
from raydr.stages.pool import Pool
from raydr.stages.runs import part_name, write_run_part
from raydr.stages.search_layout import Layout, plan_layout
from raydr.store.artifact import Artifact, Building, Part
from raydr.store.folder import Folder

#: Batches that are being searched or merged at a time, so that no actor waits for work.
_BATCHES_IN_FLIGHT = 4
#: Search actors whose results one merging actor keeps up with.
_SEARCHERS_PER_MERGER = 8
#: Seconds until it is said what the first batch waits for.
_FIRST_BATCH_S = 120.0
#: Dimensions of the index that is looked at for what its kind uses: many numbers of subquantizers divide them.
_ANY_DIM = 11_520


@dataclass(frozen=True)
class QueryBatch:
    """Consecutive queries of one part of the embeddings; becomes one part of the run."""

    number: int
    part: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        """Of the part of the run."""
        return part_name(self.number)

    @property
    def rows(self) -> int:
        return self.stop - self.start


def search_settings(settings: SearchConfig, factory: str | None) -> dict[str, Any]:
    """The settings that change what is found in an index of a kind.

    Args:
        settings: all of them.
        factory: the FAISS factory string; all settings count where it is ``auto``, None, or one that cannot be looked
            at without the vectors' dimension.

    >>> search_settings(SearchConfig(nprobe=8), "Flat")
    {'batch_queries': 1024}
    >>> search_settings(SearchConfig(nprobe=8), "IVF16,Flat")
    {'batch_queries': 1024, 'nprobe': 8}
    """
    names = {"nprobe", "ef_search", "refine_factor"}
    if factory is not None and factory != "auto":
        with suppress(ConfigError):
            names = uses(make_index(factory, _ANY_DIM))
    return {name: getattr(settings, name) for name in sorted({"batch_queries", *names})}


def search(
    making: Building,
    pool: Pool,
    index: Artifact,
    queries: Artifact,
    *,
    settings: SearchConfig,
    top_k: int,
    system: str,
) -> dict[str, Any]:
    """Find the best passages for every query: a ``run`` artefact.

    Args:
        making: the artefact.
        pool: where the shards are held.
        index: an index of passages.
        queries: encoded queries, of the model that encoded the passages.
        settings: how the index is searched.
        top_k: passages a query.
        system: what the run is called in tables.

    Raises:
        ConfigError: the cluster cannot hold one search actor, or has no GPU that is asked for.
    """
    shards, encoded = IndexShards(index), Embeddings(queries)
    batches = plan_batches(encoded, settings.batch_queries)
    todo = [batch for batch in batches if batch.name not in making.done]
    if len(todo) < len(batches):
        say(f"search: {len(batches) - len(todo)} of {len(batches)} parts are there already, {len(todo)} to do")
    if todo:
        find = _search_here if pool.here else _search_on_ray
        with progress_bar("search", total=sum(batch.rows for batch in todo), unit="queries") as bar:
            for batch, part in find(making.folder, pool, shards, encoded, todo, settings, top_k):
                # It is recorded on disk already.
                making.done[batch.name] = part
                bar.advance(batch.rows)
    return {
        "system": system,
        "num_queries": len(encoded),
        "top_k": top_k,
        "factory": shards.factory,
        "num_passages": len(shards),
        "split": encoded.artifact.info["split"],
    }


def plan_batches(queries: Embeddings, batch_queries: int) -> list[QueryBatch]:
    """Cut the parts of the queries into batches of at most ``batch_queries``."""
    batches: list[QueryBatch] = []
    for part in range(len(queries.part_names)):
        rows = int(queries.starts[part + 1] - queries.starts[part])
        for start in range(0, rows, batch_queries):
            batches.append(QueryBatch(len(batches), part, start, min(start + batch_queries, rows)))
    return batches


class ShardHolder:
    """Holds some shards, loaded and ready."""

    def __init__(
        self,
        index: Folder,
        shards: Sequence[int],
        queries: Folder,
        settings: SearchConfig,
        num_threads: int,
        device: str,
    ) -> None:
        self.searcher = ShardSearcher(IndexShards.open(index), shards, settings, num_threads, device)
        self.queries = Embeddings.open(queries)

    def search(self, batch: QueryBatch, top_k: int) -> Found:
        """The best passages of these shards for the queries of one batch."""
        return self.searcher.search(self.queries.vectors(batch.part)[batch.start : batch.stop], top_k)


class Merger:
    """Merges what was found for a batch and writes the part of the run."""

    def __init__(self, index: Folder, queries: Folder, output: Folder, niceness: int = 0) -> None:
        os.nice(niceness)
        self.shards = IndexShards.open(index)
        self.queries = Embeddings.open(queries)
        self.output = output

    def write(self, batch: QueryBatch, top_k: int, *parts: Found) -> Part:
        """Write and record one part."""
        found = merge(parts, top_k)
        query_ids = self.queries.ids(batch.part).slice(batch.start, batch.rows).combine_chunks()
        ranked = rank_found(query_ids, self.shards.passage_ids(found.rows[found.rows >= 0]), found)
        return write_run_part(self.output, batch.name, ranked)


def _search_here(
    output: Folder,
    pool: Pool,
    shards: IndexShards,
    queries: Embeddings,
    todo: list[QueryBatch],
    settings: SearchConfig,
    top_k: int,
) -> Iterator[tuple[QueryBatch, Part]]:
    index, vectors = shards.artifact.folder, queries.artifact.folder
    num_threads = settings.cpus_per_actor or os.cpu_count() or 1
    device = "cuda" if settings.device == "cuda" else "cpu"
    holder = ShardHolder(index, range(shards.num_shards), vectors, settings, num_threads, device)
    merger = Merger(index, vectors, output)
    for batch in todo:
        yield batch, merger.write(batch, top_k, holder.search(batch, top_k))


def _search_on_ray(
    output: Folder,
    pool: Pool,
    shards: IndexShards,
    queries: Embeddings,
    todo: list[QueryBatch],
    settings: SearchConfig,
    top_k: int,
) -> Iterator[tuple[QueryBatch, Part]]:
    layout = plan_layout(settings, shards.num_shards, shards.factory, pool)
    with worker_errors():
        yield from _search_by_actors(
            output, shards.artifact.folder, queries.artifact.folder, todo, layout, settings, top_k
        )


def _search_by_actors(
    output: Folder,
    index: Folder,
    queries: Folder,
    todo: list[QueryBatch],
    layout: Layout,
    settings: SearchConfig,
    top_k: int,
) -> Iterator[tuple[QueryBatch, Part]]:
    import ray

    # An actor that dies is started again and asked again: what it does depends on its arguments only. A lost node is
    # noticed late, and until then each attempt fails at once: a number of attempts would be used up in that time.
    # Batches go in any order, since one that was lost on the way would keep the others waiting for half a minute.
    lasting = {
        "scheduling_strategy": "SPREAD",
        "max_restarts": 3,
        "max_task_retries": -1,
        "allow_out_of_order_execution": True,
    }
    hold = ray.remote(num_cpus=layout.cpus, num_gpus=layout.gpus, **lasting)(ShardHolder)
    holders = [hold.remote(index, group, queries, settings, layout.cpus, layout.device) for group in layout.groups]
    # Merging is light, and must never wait for CPUs that the searchers hold. All threads of a search wait for its
    # slowest one; merging takes the time that they leave.
    merging = ray.remote(num_cpus=0, **lasting)(Merger)
    mergers = [
        merging.remote(index, queries, output, niceness=5) for _ in range(1 + len(holders) // _SEARCHERS_PER_MERGER)
    ]
    waiting = list(reversed(todo))
    pending: dict[Any, QueryBatch] = {}
    begun = False
    try:
        while waiting or pending:
            while waiting and len(pending) < _BATCHES_IN_FLIGHT:
                batch = waiting.pop()
                parts = [holder.search.remote(batch, top_k) for holder in holders]
                pending[mergers[batch.number % len(mergers)].write.remote(batch, top_k, *parts)] = batch
            finished, _ = ray.wait(list(pending), num_returns=1, timeout=None if begun else _FIRST_BATCH_S)
            begun = True
            if not finished:
                say(_waiting(layout))
                continue
            (done,) = finished
            yield pending.pop(done), ray.get(done)
    finally:
        for actor in [*holders, *mergers]:
            ray.kill(actor)


def _waiting(layout: Layout) -> str:
    each = f"{counted(layout.cpus, 'CPU')}{' and a GPU' if layout.gpus else ''}"
    return (
        f"search: no batch is done after {_FIRST_BATCH_S:.0f} s. {counted(len(layout.groups), 'actor')} of {each} must "
        "be there at a time: if the cluster cannot grow so far, set search.max_actors or search.cpus_per_actor lower"
        + (", or search.device=cpu" if layout.gpus else "")
    )
