"""Search an index for many queries: some hold the shards, another merges what they find and writes the run.

On Ray these are actors. A batch of queries goes to every one that holds shards; what comes back stays in Ray's object
store until it is merged and written as one part of the run. The driver sees counters only, and keeps a bounded number
of batches on the way. In this process one holds all shards, and batches follow one another.
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

#: Batches that are being searched or merged at a time, so that no actor waits for work.
_BATCHES_IN_FLIGHT = 4
#: Search actors whose results one merging actor keeps up with.
_SEARCHERS_PER_MERGER = 8
#: Seconds until it is said what the first batch waits for.
_FIRST_BATCH_S = 120.0
#: Dimensions of the index that is looked at for what its kind uses: many numbers of subquantizers divide them.
_ANY_DIM = 11_520


@dataclass(frozen=True)
class SearchJob:
    """What everyone knows who takes part in a search; picklable."""

    shards: IndexShards
    queries: Embeddings
    settings: SearchConfig
    top_k: int
    scope: Scope
    skip_own_id: bool
    output: Folder

    @property
    def depth(self) -> int:
        """Passages that are looked for: one of them may be the query's own."""
        return self.top_k + self.skip_own_id

    def partitions(self, batch: RowRange) -> frozenset[str] | None:
        """Those that the queries of a batch are confined to; None if to none."""
        return within(self.scope, self.queries.partitions[batch.at], self.queries.partitions)


def settings_in_use(settings: SearchConfig, factory: str, score: ScoreFunction) -> SearchConfig:
    """The settings of a search, those that change nothing in an index of a kind at their defaults.

    Args:
        settings: all of them.
        factory: the FAISS factory string; all settings count where it is ``auto``, or cannot be looked at without the
            vectors' dimension.
        score: of the model.

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
    # The depth is a parameter of its own: mining and judges have other depths.
    return settings.model_copy(update={name: getattr(defaults, name) for name in (*sorted(unused), "top_k")})


def of_model(context: Context, model: Node, name: str, split: str, top_k: int = 0, scope: Scope | None = None) -> Node:
    """What a model finds for the queries of a split.

    Args:
        context: the config.
        model: the model.
        name: what it is called.
        split: the split.
        top_k: passages a query; ``search.top_k`` if 0.
        scope: the partitions that a query is searched in; as the config says if None.
    """
    searched, asked = index.of_model(context, model, name), encode.queries(context, model, name, split)
    return in_index(context, searched, asked, name, split, context.config.model.score, top_k, scope)


def in_index(
    context: Context,
    searched: Node,
    asked: Node,
    name: str,
    split: str,
    score: ScoreFunction,
    top_k: int = 0,
    scope: Scope | None = None,
) -> Node:
    """What is found in an index; arguments as of :func:`of_model`.

    Args:
        context: the config.
        searched: the index.
        asked: vectors of the queries.
        name: what the run is called.
        split: the split.
        score: of the vectors.
        top_k: see there.
        scope: see there.
    """
    settings = context.config.search
    system, scope = f"{name}@{scope}" if scope else name, scope or context.config.scope(split)
    return search.node(
        context.label("search", system, split),
        index=searched,
        queries=asked,
        settings=settings_in_use(settings, context.config.index.factory, score),
        top_k=top_k or settings.top_k,
        scope=scope,
        skip_own_id=context.config.data.skip_own_id,
        system=system,
        demand=_searchers(settings),
    )


def _searchers(settings: SearchConfig) -> dict[str, float]:
    """All search actors, which must fit at a time. Where their number or what they take is open they take all: two
    searches that each held a part of the cluster would wait for the rest for ever."""
    cpus, actors = settings.cpus_per_actor, settings.max_actors
    stated = settings.device != "auto" and cpus is not None and actors is not None
    demand = {"CPU": float(cpus * actors) if stated and cpus and actors else math.inf}
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
        making: the artefact.
        pool: where the shards are held.
        index: an index of passages.
        queries: encoded queries, of the model that encoded the passages.
        settings: how the index is searched.
        top_k: passages a query.
        scope: the partitions that a query is searched in.
        skip_own_id: whether a passage that has the query's id is left out.
        system: what the run is called in tables.

    Raises:
        ConfigError: the cluster cannot hold one search actor, or has no GPU that is asked for.
        DataError: the queries were encoded by another model.
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
                # It is recorded on disk already.
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
    """Holds some shards, loaded and ready."""

    def __init__(self, job: SearchJob, shards: Sequence[int], num_threads: int, device: str) -> None:
        self.job = job
        self.searcher = ShardSearcher(job.shards, shards, job.settings, num_threads, device)

    def search(self, batch: RowRange) -> TopRows:
        """The best passages of these shards for the queries of one batch."""
        vectors = self.job.queries.slice(batch.at, batch.start, batch.stop)
        return self.searcher.search(vectors, self.job.depth, self.job.partitions(batch))


class Merger:
    """Merges what was found for a batch and writes the part of the run."""

    def __init__(self, job: SearchJob, niceness: int = 0) -> None:
        os.nice(niceness)
        self.job = job

    def write(self, name: str, batch: RowRange, *parts: TopRows) -> Part:
        """Write and record one part."""
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

    # An actor that dies is started again and asked again: what it does depends on its arguments only. A lost node is
    # noticed late, and until then each attempt fails at once: a number of attempts would be used up in that time.
    # Batches go in any order, since one that was lost on the way would keep the others waiting for half a minute.
    lasting = {
        "scheduling_strategy": "SPREAD",
        "max_restarts": 3,
        "max_task_retries": -1,
        "allow_out_of_order_execution": True,
        "label_selector": stage_labels(),
    }
    hold = ray.remote(num_cpus=layout.cpus, num_gpus=layout.gpus, **lasting)(ShardHolder)
    holders = [hold.remote(job, group, layout.cpus, layout.device) for group in layout.groups]
    # Merging is light, and must never wait for CPUs that the searchers hold. All threads of a search wait for its
    # slowest one; merging takes the time that they leave.
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
