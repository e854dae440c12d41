"""Retrieval: vectors, indexes and runs, of trained models and of BM25; runs of other programs."""

from __future__ import annotations

from raydr.graph.declaring import Declaring, encoders
from raydr.graph.node import Node
from raydr.graph.nodes import data


def passages(run: Declaring, model: Node, name: str) -> Node:
    """The vectors of all passages."""
    from raydr.stages.encode import encode_passages

    settings, arithmetic = run.config.encode, run.facts.encoding(run.config.encode)
    return Node(
        "embeddings",
        run.label("encode", name, "passages"),
        lambda work: encode_passages(
            work.making, work.pool, work["model"], work["corpus"], settings=settings, arithmetic=arithmetic
        ),
        {"side": "passage", **arithmetic.content, "batching": settings.batching},
        {"model": model, "corpus": data.corpus(run)},
        num_rows=lambda inputs: inputs["corpus"].rows("passages"),
        unit="passages",
        asks_model=True,
        demand=encoders(run.config),
        temporary=True,
    )


def queries(run: Declaring, model: Node, name: str, split: str) -> Node:
    """The vectors of the queries of a split."""
    from raydr.stages.encode import encode_queries

    settings, arithmetic = run.config.encode, run.facts.encoding(run.config.encode)
    return Node(
        "embeddings",
        run.label("encode", name, split),
        lambda work: encode_queries(
            work.making,
            work.pool,
            work["model"],
            work["dataset"],
            split=split,
            settings=settings,
            arithmetic=arithmetic,
        ),
        {"side": "query", "split": split, **arithmetic.content, "batching": settings.batching},
        {"model": model, "dataset": data.dataset(run)},
        num_rows=lambda inputs: inputs["dataset"].rows(f"queries/{split}"),
        unit="queries",
        asks_model=True,
        demand=encoders(run.config),
        temporary=True,
    )


def index(run: Declaring, model: Node, name: str) -> Node:
    """The FAISS index over a model's passage vectors."""
    from raydr.models.dual_encoder import read_config
    from raydr.stages.index import build_index

    settings, vectors = run.config.index, passages(run, model, name)
    return Node(
        "index",
        run.label("index", name),
        lambda work: build_index(
            work.making,
            work.pool,
            work["embeddings"],
            settings=settings,
            score=read_config(work["model"].folder.localize_all()).score,
        ),
        settings.model_dump(mode="json", include={"factory", "shard_rows", "train_rows"}),
        {"embeddings": vectors, **vectors.inputs},
        num_rows=lambda inputs: inputs["embeddings"].rows(),
        unit="passages",
        demand={"CPU": float(settings.cpus_per_task)},
        temporary=True,
    )


def search(run: Declaring, model: Node, name: str, split: str, top_k: int = 0) -> Node:
    """What a model finds for the queries of a split.

    Args:
        run: the config.
        model: the model.
        name: what it is called.
        split: the split.
        top_k: passages a query; ``search.top_k`` if 0.
    """
    from raydr.stages.search import search as find
    from raydr.stages.search import search_settings

    settings, factory = run.config.search, run.config.index.factory
    top_k = top_k or settings.top_k
    return Node(
        "run",
        run.label("search", name, split),
        lambda work: find(
            work.making, work.pool, work["index"], work["queries"], settings=settings, top_k=top_k, system=name
        ),
        {"split": split, "top_k": top_k, **search_settings(settings, None if factory == "auto" else factory)},
        {"index": index(run, model, name), "queries": queries(run, model, name, split)},
        num_rows=lambda inputs: inputs["queries"].rows() + inputs["index"].rows(),
        unit="queries and passages",
        demand=_searchers(run),
    )


def _searchers(run: Declaring) -> dict[str, float]:
    """All search actors, which must fit at a time: by default they take all CPUs."""
    settings = run.config.search
    cpus = settings.cpus_per_actor
    actors = settings.max_actors or 1
    demand = {"CPU": 1e9 if cpus is None else float(cpus * actors)}
    return demand if settings.device != "cuda" else demand | {"GPU": float(actors)}


def bm25(run: Declaring) -> Node:
    """The BM25 index."""
    from raydr.stages.bm25 import VERSION, build_bm25

    settings = run.config.bm25
    return Node(
        "bm25",
        "bm25",
        lambda work: build_bm25(work.making, work.pool, work["corpus"], settings=settings),
        settings.model_dump(mode="json"),
        {"corpus": data.corpus(run)},
        VERSION,
        num_rows=lambda inputs: inputs["corpus"].rows("passages"),
        unit="passages",
    )


def search_bm25(run: Declaring, split: str) -> Node:
    """What BM25 finds for the queries of a split."""
    from raydr.stages.bm25 import search_bm25 as find

    top_k = run.config.search.top_k
    return Node(
        "run",
        f"search-bm25-{split}",
        lambda work: find(
            work.making, work.pool, work["dataset"], work["corpus"], work["bm25"], split=split, top_k=top_k
        ),
        {"split": split, "top_k": top_k},
        {"bm25": bm25(run), "dataset": data.dataset(run), "corpus": data.corpus(run)},
        num_rows=lambda inputs: inputs["dataset"].rows(f"queries/{split}"),
        unit="queries",
    )


def imported(file: str, split: str, system: str) -> Node:
    """A run that another program has made."""
    from raydr.stages.runs import import_trec_run, trec_checksum

    return Node(
        "run",
        f"import-{system}-{split}",
        lambda work: import_trec_run(work.making, work.pool, path=file),
        {"source": "trec", "split": split, "system": system, "file": trec_checksum(file)},
        unit="lines",
    )
