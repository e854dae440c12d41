"""Retrieval: vectors, indexes and runs, of trained models and of BM25; runs of other programs."""

from __future__ import annotations

from functools import partial

from raydr.data.partitions import Scope
from raydr.graph.declaring import Declaring, encoders
from raydr.graph.node import Node, stage
from raydr.graph.nodes import data


def passages(run: Declaring, model: Node, name: str) -> Node:
    """The vectors of all passages."""
    from raydr.stages.encode import encode_texts

    settings, arithmetic = run.config.encode, run.facts.encoding(run.config.encode)
    return Node(
        "embeddings",
        run.label("encode", name, "passages"),
        stage(partial(encode_texts, settings=settings, arithmetic=arithmetic), "model", "corpus"),
        {"side": "passage", **arithmetic.content, "batching": settings.batching},
        {"model": model, "corpus": data.corpus(run)},
        num_rows=lambda inputs: inputs["corpus"].rows("passages"),
        asks_model=True,
        demand=encoders(run.config),
        temporary=True,
    )


def queries(run: Declaring, model: Node, name: str, split: str) -> Node:
    """The vectors of the queries of a split."""
    from raydr.stages.encode import encode_texts

    settings, arithmetic = run.config.encode, run.facts.encoding(run.config.encode)
    return Node(
        "embeddings",
        run.label("encode", name, split),
        stage(partial(encode_texts, split=split, settings=settings, arithmetic=arithmetic), "model", "dataset"),
        {"side": "query", "split": split, **arithmetic.content, "batching": settings.batching},
        {"model": model, "dataset": data.dataset(run)},
        num_rows=lambda inputs: inputs["dataset"].rows(f"queries/{split}"),
        asks_model=True,
        demand=encoders(run.config),
        temporary=True,
    )


def index(run: Declaring, model: Node, name: str) -> Node:
    """The FAISS index over a model's passage vectors."""
    from raydr.models.dual_encoder import read_config
    from raydr.stages.index import build_index

    settings, vectors = run.config.index, passages(run, model, name)
    content = {"factory", "shard_rows", "train_rows"}
    if run.config.model.score.passage_vectors.several:
        content.add("vectors")
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
        settings.model_dump(mode="json", include=content),
        {"embeddings": vectors, **vectors.inputs},
        num_rows=lambda inputs: inputs["embeddings"].rows(),
        demand={"CPU": float(settings.cpus_per_task)},
        temporary=True,
    )


def search(run: Declaring, model: Node, name: str, split: str, top_k: int = 0, scope: Scope | None = None) -> Node:
    """What a model finds for the queries of a split.

    Args:
        run: the config.
        model: the model.
        name: what it is called.
        split: the split.
        top_k: passages a query; ``search.top_k`` if 0.
        scope: the partitions that a query is searched in; as the config says if None.
    """
    from raydr.stages.search import search as find
    from raydr.stages.search import search_settings

    settings, factory, score = run.config.search, run.config.index.factory, run.config.model.score
    top_k = top_k or settings.top_k
    system, scope = f"{name}@{scope}" if scope else name, scope or run.config.scope(split)
    how = {"split": split, "top_k": top_k, "scope": scope}
    return Node(
        "run",
        run.label("search", system, split),
        stage(partial(find, settings=settings, top_k=top_k, scope=scope, system=system), "index", "queries"),
        {**how, **search_settings(settings, None if factory == "auto" else factory, score)},
        {"index": index(run, model, name), "queries": queries(run, model, name, split)},
        num_rows=lambda inputs: inputs["queries"].rows() + inputs["index"].rows(),
        demand=_searchers(run),
    )


def reranked(run: Declaring, ranked: Node, model: Node, split: str, system: str) -> Node:
    """A run whose best passages a model has scored anew.

    Args:
        run: the config.
        ranked: the run that is reranked.
        model: a cross-encoder, or a retriever.
        split: the split.
        system: what the new run is called.
    """
    from raydr.stages.rerank import VERSION, rerank
    from raydr.stages.scoring import scoring_of

    depth, encode = run.config.rerank.depth, run.config.encode
    arithmetic = run.facts.encoding(encode)
    return Node(
        "run",
        run.label("rerank", system, split),
        lambda work: rerank(
            work.making,
            work.pool,
            work["run"],
            work["dataset"],
            work["corpus"],
            split=split,
            depth=depth,
            system=system,
            settings=encode,
            scoring=scoring_of(work["model"], encode, arithmetic),
        ),
        {"split": split, "depth": depth, **arithmetic.content},
        {"run": ranked, "model": model, "dataset": data.dataset(run), "corpus": data.corpus(run)},
        VERSION,
        num_rows=lambda inputs: inputs["run"].rows(),
        asks_model=True,
        demand=encoders(run.config),
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
        stage(partial(build_bm25, settings=settings), "corpus"),
        settings.model_dump(mode="json"),
        {"corpus": data.corpus(run)},
        VERSION,
        num_rows=lambda inputs: inputs["corpus"].rows("passages"),
    )


def search_bm25(run: Declaring, split: str, scope: Scope | None = None) -> Node:
    """What BM25 finds for the queries of a split; ``scope`` as in :func:`search`."""
    from raydr.stages.bm25 import search_bm25 as find

    system, scope = f"bm25@{scope}" if scope else "bm25", scope or run.config.scope(split)
    top_k = run.config.search.top_k
    return Node(
        "run",
        f"search-{system}-{split}",
        stage(partial(find, split=split, top_k=top_k, scope=scope), "dataset", "corpus", "bm25"),
        {"split": split, "top_k": top_k, "scope": scope},
        {"bm25": bm25(run), "dataset": data.dataset(run), "corpus": data.corpus(run)},
        num_rows=lambda inputs: inputs["dataset"].rows(f"queries/{split}"),
    )


def imported(file: str, split: str, system: str) -> Node:
    """A run that another program has made."""
    from raydr.stages.runs import import_trec_run, trec_checksum

    return Node(
        "run",
        f"import-{system}-{split}",
        stage(partial(import_trec_run, path=file)),
        {"source": "trec", "split": split, "system": system, "file": trec_checksum(file)},
    )
