"""Search of an index for many queries.

On Ray, actors hold the shards, and each searches every batch of queries. Their results stay in Ray's object store until
another actor merges them and writes a part of the run. The driver sees counters only, and bounds the number of batches
in flight. Without Ray, this process holds all shards and searches batch by batch.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

from raydr.artefacts import Context, Node, artefact, index
from raydr.artefacts import embeddings as encode
from raydr.artefacts.run import part_name, without_own_ids
from raydr.artefacts.search_layout import Layout, plan_layout
from raydr.component import Neutral
from raydr.console import counted, progress_bar, say
from raydr.data.embeddings import Embeddings
from raydr.data.parts import Scope, within
from raydr.distributed.cluster import stage_labels
from raydr.distributed.failures import worker_errors
from raydr.distributed.parts import RowRange, missing_parts, row_ranges, write_table
from raydr.distributed.pool import Pool
from raydr.errors import ConfigError, DataError
from raydr.indexing.config import SearchConfig
from raydr.indexing.faiss_backend import EXACT, make_index, uses
from raydr.indexing.search import ShardSearcher, TopRows, merge, rank_top_rows
from raydr.indexing.shards import IndexShards
from raydr.models.scores.base import ScoreFunction
from raydr.store import Artifact, Building, Folder, Part

#: Batches that are searched or merged at a time, so that no actor waits for work.
_BATCHES_IN_FLIGHT = 4
#: Search actors for each merging actor.
_SEARCHERS_PER_MERGER = 8
#: Seconds until a message tells why the first batch waits.
_FIRST_BATCH_S = 120.0
#: Dimensions of a probe index; many numbers of subquantizers divide them.
_ANY_DIM = 11_520


@dataclass(frozen=True)
class SearchJob:
    """Inputs and settings of a search; picklable."""

    shards: IndexShards
    queries: Embeddings
    settings: SearchConfig
    top_k: int
    scope: Scope
    skip_own_id: bool
    output: Folder

    @property
    def depth(self) -> int:
        """Number of passages to search for; one may be the query's own, which is left out."""
        return self.top_k + self.skip_own_id

    def partitions(self, batch: RowRange) -> frozenset[str] | None:
        """Return the partitions that a batch may search; None without a restriction."""
        return within(self.scope, self.queries.partitions[batch.at], self.queries.partitions)


def settings_in_use(settings: SearchConfig, factory: str, score: ScoreFunction) -> SearchConfig:
    """Reset the settings that have no effect on this kind of index to their defaults.

    Args:
        settings: settings of the search.
        factory: FAISS factory string. If it is ``auto``, or depends on the dimension, all settings count.
        score: score function of the model.

    >>> from raydr.models.scores.dual import Dual
    >>> settings_in_use(SearchConfig(nprobe=8, batch_queries=9), "Flat", Dual()).differing_settings()
    {'batch_queries': 9}
    >>> settings_in_use(SearchConfig(nprobe=8), "IVF16,Flat", Dual()).differing_settings()
    {'nprobe': 8}
    """
    of_kinds, of_tokens = {"nprobe", "ef_search", "refine_factor"}, {"num_nearest", "num_candidates"}
    used = set(of_kinds)
    if factory != "auto":
        with suppress(ConfigError):
            used = set(uses(make_index(factory, _ANY_DIM)))
    if score.is_largest_of_tokens and factory not in EXACT:
        used |= of_tokens
    defaults, unused = SearchConfig(), (of_kinds | of_tokens) - used
    # The depth is a parameter of the stage: mining and judges have other depths.
    return settings.model_copy(update={name: getattr(defaults, name) for name in (*sorted(unused), "top_k")})


def of_model(context: Context, model: Node, name: str, split: str, top_k: int = 0, scope: Scope | None = None) -> Node:
    """Return the node of a model's run on a split.

    Args:
        context: config and facts.
        model: node of the model.
        name: name of the system.
        split: split of the queries.
        top_k: passages per query; ``search.top_k`` if 0.
        scope: partitions that a query may search; from the config if None.
    """
    passages, queries = index.of_model(context, model, name), encode.queries(context, model, name, split)
    return in_index(context, passages, queries, name, split, context.config.model.score, top_k, scope)


def in_index(
    context: Context,
    passages: Node,
    queries: Node,
    name: str,
    split: str,
    score: ScoreFunction,
    top_k: int = 0,
    scope: Scope | None = None,
) -> Node:
    """Return the node of the run that searches an index.

    Args:
        context: config and facts.
        passages: node of the index.
        queries: node of the vectors of the queries.
        name: name of the system.
        split: split of the queries.
        score: score function of the vectors.
        top_k: passages per query; ``search.top_k`` if 0.
        scope: partitions that a query may search; from the config if None.
    """
    settings = context.config.search
    system, scope = f"{name}@{scope}" if scope else name, scope or context.config.scope(split)
    return search.node(
        context.label("search", system, split),
        index=passages,
        queries=queries,
        settings=settings_in_use(settings, context.config.index.factory, score),
        top_k=top_k or settings.top_k,
        scope=scope,
        skip_own_id=context.config.data.skip_own_id,
        system=system,
        demand=_searchers(settings),
    )


def _searchers(settings: SearchConfig) -> dict[str, float]:
    """Return the resources of all search actors, which must run at the same time.

    If their number or size is open, they demand the whole cluster: two searches that each held a part would wait for
    the other forever.
    """
    cpus, actors = settings.cpus_per_actor, settings.max_actors
    is_fixed = settings.device != "auto" and cpus is not None and actors is not None
    demand = {"CPU": float(cpus * actors) if is_fixed and cpus and actors else math.inf}
    return demand if settings.device != "cuda" else demand | {"GPU": float(actors or 1)}


@artefact("run", rows=lambda of: of.queries.rows() + of.index.rows())
def search(
    making: Building,
    pool: Pool,
    index: Artifact,
    queries: Artifact,
    *,
    settings: SearchConfig,
    top_k: int,
    scope: Scope = "own",
    skip_own_id: bool = False,
    system: Annotated[str, Neutral],
) -> dict[str, Any]:
    """Find the best passages for every query: a ``run`` artefact.

    Args:
        making: run to make.
        pool: pool whose actors hold the shards.
        index: index of passages.
        queries: vectors of queries, by the model of the passages.
        settings: settings of the search.
        top_k: passages per query.
        scope: partitions that a query may search.
        skip_own_id: whether to leave out passages with the query's id.
        system: name of the run in tables.

    Raises:
        ConfigError: the cluster cannot hold a search actor, or a demanded GPU is missing.
        DataError: another model encoded the queries.
    """
    shards, encoded = IndexShards(index), Embeddings(queries)
    if shards.dim != encoded.dim or shards.model_fingerprint != encoded.model_fingerprint:
        raise DataError(
            f"the passages at {index.folder} have {shards.dim} dimensions and are of {shards.model_fingerprint}, the "
            f"queries at {queries.folder} have {encoded.dim} and are of {encoded.model_fingerprint}: search with "
            "vectors of one model"
        )
    ranges = row_ranges(queries.sizes(), settings.batch_queries)
    batches = {part_name(number): batch for number, batch in enumerate(ranges)}
    todo = missing_parts(making, batches, "search")
    if todo:
        job = SearchJob(shards, encoded, settings, top_k, scope, skip_own_id, making.folder)
        if pool.here:
            ranked_parts = _search_here(job, todo)
        else:
            ranked_parts = _search_on_ray(job, plan_layout(settings, shards, pool), todo)
        with worker_errors(), progress_bar("search", sum(batch.rows for batch in todo.values()), "queries") as bar:
            for name, part in ranked_parts:
                # The part is already recorded on disk.
                making.done[name] = part
                bar.advance(todo[name].rows)
    return {
        "system": system,
        "num_queries": len(encoded),
        "top_k": top_k,
        "factory": shards.factory,
        "num_passages": len(shards),
        "split": queries.info["split"],
    }


class ShardHolder:
    """Holder of loaded shards."""

    def __init__(self, job: SearchJob, shards: Sequence[int], num_threads: int, device: str) -> None:
        self.job = job
        self.searcher = ShardSearcher(job.shards, shards, job.settings, num_threads, device)

    def search(self, batch: RowRange) -> TopRows:
        """Return the best passages of these shards for a batch of queries."""
        vectors = self.job.queries.slice(batch.at, batch.start, batch.stop)
        return self.searcher.search(vectors, self.job.depth, self.job.partitions(batch))


class Merger:
    """Writer of the run: merges the results of all holders for a batch."""

    def __init__(self, job: SearchJob, niceness: int = 0) -> None:
        os.nice(niceness)
        self.job = job

    def write(self, name: str, batch: RowRange, *parts: TopRows) -> Part:
        """Write and record a part of the run."""
        best = merge(parts, self.job.depth)
        query_ids = batch.of(self.job.queries.ids(batch.at)).combine_chunks()
        passage_ids = self.job.shards.passage_ids(best.rows[best.rows >= 0])
        ranked = rank_top_rows(query_ids, passage_ids, best)
        if self.job.skip_own_id:
            ranked = without_own_ids(ranked, self.job.top_k)
        return write_table(self.job.output, name, ranked)


def _search_here(job: SearchJob, todo: Mapping[str, RowRange]) -> Iterator[tuple[str, Part]]:
    settings = job.settings
    num_threads = settings.cpus_per_actor or os.cpu_count() or 1
    device = "cuda" if settings.device == "cuda" else "cpu"
    holder, merger = ShardHolder(job, range(job.shards.num_shards), num_threads, device), Merger(job)
    for name, batch in todo.items():
        yield name, merger.write(name, batch, holder.search(batch))


def _search_on_ray(job: SearchJob, layout: Layout, todo: Mapping[str, RowRange]) -> Iterator[tuple[str, Part]]:
    import ray

    # Calls depend on their arguments only, so that Ray may restart an actor and repeat its calls. Until Ray notices a
    # lost node, each attempt fails at once: a limited number of retries would be used up. Batches run in any order: in
    # order, a lost batch would block the others for half a minute.
    lasting = {
        "scheduling_strategy": "SPREAD",
        "max_restarts": 3,
        "max_task_retries": -1,
        "allow_out_of_order_execution": True,
        "label_selector": stage_labels(),
    }
    hold = ray.remote(num_cpus=layout.cpus, num_gpus=layout.gpus, **lasting)(ShardHolder)
    holders = [hold.remote(job, group, layout.cpus, layout.device) for group in layout.groups]
    # Merging is light and must not wait for CPUs that the searchers hold. It runs at a lower priority, since a search
    # waits for its slowest thread.
    merging = ray.remote(num_cpus=0, **lasting)(Merger)
    mergers = [merging.remote(job, niceness=5) for _ in range(1 + len(holders) // _SEARCHERS_PER_MERGER)]
    waiting = list(todo.items())[::-1]
    turns = itertools.cycle(mergers)
    pending: dict[Any, str] = {}
    begun = False
    try:
        while waiting or pending:
            while waiting and len(pending) < _BATCHES_IN_FLIGHT:
                name, batch = waiting.pop()
                parts = [holder.search.remote(batch) for holder in holders]
                pending[next(turns).write.remote(name, batch, *parts)] = name
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
