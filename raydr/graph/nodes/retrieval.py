"""Retrieval: vectors, indexes and runs, of trained models and of BM25; runs of other programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

from raydr.data.partitions import Scope
from raydr.evaluation.config import FUSED, FuseConfig
from raydr.graph.nodes import data
from raydr.models.encode_config import NUM_CALIBRATING
from raydr.models.saved_config import read_config
from raydr.models.scores.base import ScoreFunction
from raydr.models.scores.dual import Dual
from raydr.stages.context import Declaring, asking, encoders
from raydr.stages.declaration import Node, Work, stage
from raydr.stages.encode import encode_texts
from raydr.stages.import_vectors import file_checksum, import_vectors
from raydr.stages.index import build_index
from raydr.stages.quantize import quantize_encoder
from raydr.stages.rerank import VERSION, rerank
from raydr.stages.runs import import_trec_run, trec_checksum
from raydr.stages.search import search as find
from raydr.stages.search import search_settings


def passages(run: Declaring, model: Node, name: str) -> Node:
    """The vectors of all passages."""
    settings, arithmetic = run.config.encode, run.facts.encoding(run.config.encode)
    inputs = {"model": model, "corpus": data.corpus(run)}
    if settings.dtype == "int8":
        arithmetic, inputs["quantized"] = arithmetic.in_int8(), quantized(run, model, name)
    return Node(
        "embeddings",
        run.label("encode", name, "passages"),
        stage(partial(encode_texts, settings=settings, arithmetic=arithmetic), "model", "corpus", "quantized"),
        {"side": "passage", **arithmetic.content, **settings.model_dump(include={"batching", "token_pooling"})},
        inputs,
        num_rows=lambda inputs: inputs["corpus"].rows("passages"),
        asks_model=True,
        demand=encoders(run.config),
        temporary=True,
    )


def quantized(run: Declaring, model: Node, name: str) -> Node:
    """A model's encoder of passages in int8, for all that encode with it the same."""
    settings = run.config.encode
    return Node(
        "quantized",
        run.label("quantize", name),
        stage(partial(quantize_encoder, num_cpus=settings.cpus_per_actor), "model", "corpus"),
        {"num_passages": NUM_CALIBRATING},
        {"model": model, "corpus": data.corpus(run)},
        num_rows=lambda inputs: NUM_CALIBRATING,
        asks_model=True,
        demand={"CPU": settings.cpus_per_actor},
        temporary=True,
    )


def queries(run: Declaring, model: Node, name: str, split: str) -> Node:
    """The vectors of the queries of a split."""
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

    def score(work: Work) -> ScoreFunction:
        return read_config(work["model"].local_folder()).score

    return _index(run, passages(run, model, name), name, score, run.config.model.score.passage_vectors.several)


def index_of_imported(run: Declaring, vectors: Node, name: str) -> Node:
    """The FAISS index over passage vectors that another program has made."""
    return _index(run, vectors, name, lambda work: Dual(), several=False)


def _index(run: Declaring, vectors: Node, name: str, score: Callable[[Work], ScoreFunction], several: bool) -> Node:
    settings = run.config.index
    content = {"factory", "shard_rows", "train_rows"}
    if several:
        content.add("vectors")
    return Node(
        "index",
        run.label("index", name),
        lambda work: build_index(work.making, work.pool, work["embeddings"], settings=settings, score=score(work)),
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
    found = index(run, model, name), queries(run, model, name, split)
    return search_in(run, *found, name, split, run.config.model.score, top_k, scope)


def search_in(
    run: Declaring,
    searched: Node,
    asked: Node,
    name: str,
    split: str,
    score: ScoreFunction,
    top_k: int = 0,
    scope: Scope | None = None,
) -> Node:
    """What is found in an index.

    Args:
        run: the config.
        searched: the index.
        asked: vectors of the queries.
        name: what the run is called.
        split: the split.
        score: of the vectors.
        top_k: passages a query; ``search.top_k`` if 0.
        scope: as in :func:`search`.
    """
    settings, factory = run.config.search, run.config.index.factory
    top_k = top_k or settings.top_k
    system, scope = f"{name}@{scope}" if scope else name, scope or run.config.scope(split)
    own = run.config.data.skip_own_id
    how = {"split": split, "top_k": top_k, "scope": scope, **_own_ids(own)}
    do = partial(find, settings=settings, top_k=top_k, scope=scope, skip_own_id=own, system=system)
    return Node(
        "run",
        run.label("search", system, split),
        stage(do, "index", "queries"),
        {**how, **search_settings(settings, None if factory == "auto" else factory, score)},
        {"index": searched, "queries": asked},
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
    depth, arithmetic = run.config.rerank.depth, run.facts.encoding(run.config.encode)
    return Node(
        "run",
        run.label("rerank", system, split),
        asking(run, partial(rerank, split=split, depth=depth, system=system), "run", "dataset", "corpus"),
        {"split": split, "depth": depth, **arithmetic.content},
        {"run": ranked, "model": model, "dataset": data.dataset(run), "corpus": data.corpus(run)},
        VERSION,
        num_rows=lambda inputs: inputs["run"].rows(),
        asks_model=True,
        demand=encoders(run.config),
    )


def fusion_weights(run: Declaring, settings: FuseConfig, runs: Mapping[str, Node]) -> Node:
    """What each system counts for in a fusion, chosen on the dev split.

    Args:
        run: the config.
        settings: how runs are fused.
        runs: over the dev split, by system.
    """
    from raydr.stages.fuse import VERSION, WEIGHTS, choose_fusion_weights

    split = run.config.data.dev_split
    return Node(
        WEIGHTS,
        f"{run.place}fusion-weights",
        stage(partial(choose_fusion_weights, settings=settings, split=split), "dataset", "run/"),
        {"split": split, "measure": settings.measure, **_fusion(settings)},
        {"dataset": data.dataset(run), **{f"run/{system}": node for system, node in runs.items()}},
        VERSION,
        num_rows=lambda inputs: inputs["dataset"].rows(f"queries/{split}") * len(runs),
    )


def fused(run: Declaring, settings: FuseConfig, runs: Mapping[str, Node], weights: Node | None, split: str) -> Node:
    """The runs of several systems as one.

    Args:
        run: the config.
        settings: how they are fused.
        runs: over the split, by system.
        weights: chosen on dev; None where the settings have them.
        split: the split.
    """
    from raydr.stages.fuse import VERSION, fuse

    given = {"dataset": data.dataset(run), **{f"run/{system}": node for system, node in runs.items()}}
    return Node(
        "run",
        run.label("fuse", split),
        stage(partial(fuse, settings=settings, split=split), "dataset", "run/", "weights"),
        {"split": split, "system": FUSED, **_fusion(settings), **({} if weights else {"weights": settings.weights})},
        given if weights is None else given | {"weights": weights},
        VERSION,
        num_rows=lambda inputs: inputs["dataset"].rows(f"queries/{split}") * len(runs),
    )


def _fusion(settings: FuseConfig) -> dict[str, object]:
    offset = {"rank_offset": settings.rank_offset} if settings.by == "ranks" else {}
    return {"systems": settings.systems, "by": settings.by, **offset}


def _searchers(run: Declaring) -> dict[str, float]:
    """All search actors, which must fit at a time. Where their number or what they take is open they take all: two
    searches that each held a part of the cluster would wait for the rest for ever."""
    settings = run.config.search
    cpus, actors = settings.cpus_per_actor, settings.max_actors
    stated = settings.device != "auto" and cpus is not None and actors is not None
    demand = {"CPU": float(cpus * actors) if stated and cpus and actors else math.inf}
    return demand if settings.device != "cuda" else demand | {"GPU": float(actors or 1)}


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
    top_k, own = run.config.search.top_k, run.config.data.skip_own_id
    do = partial(find, split=split, top_k=top_k, scope=scope, skip_own_id=own)
    return Node(
        "run",
        f"search-{system}-{split}",
        stage(do, "dataset", "corpus", "bm25"),
        {"split": split, "top_k": top_k, "scope": scope, **_own_ids(own)},
        {"bm25": bm25(run), "dataset": data.dataset(run), "corpus": data.corpus(run)},
        num_rows=lambda inputs: inputs["dataset"].rows(f"queries/{split}"),
    )


def _own_ids(skipped: bool) -> dict[str, bool]:
    """Content of a run in which a query's own passage is left out."""
    return {"skip_own_id": True} if skipped else {}


def imported(file: str, split: str, system: str, skip_own_id: bool) -> Node:
    """A run that another program has made; without the passages that have their query's id, if that is asked."""
    return Node(
        "run",
        f"import-{system}-{split}",
        stage(partial(import_trec_run, path=file, skip_own_id=skip_own_id)),
        {"source": "trec", "split": split, "system": system, "file": trec_checksum(file), **_own_ids(skip_own_id)},
    )


def imported_vectors(
    run: Declaring, name: str, file: str, ids: str, split: str, similarity: Literal["cosine", "dot"]
) -> Node:
    """Vectors that another program has made.

    Args:
        run: the config.
        name: what the program is called.
        file: of the vectors.
        ids: file of their ids; empty if the first has them, or they are in the order of the texts.
        split: whose queries they are of; of the passages if empty.
        similarity: ``cosine`` scales them to length 1.
    """
    role, texts = ("dataset", data.dataset(run)) if split else ("corpus", data.corpus(run))
    files = {"file": file_checksum(file)} | ({"ids": file_checksum(ids)} if ids else {})
    return Node(
        "embeddings",
        run.label("import-vectors", name, split or "passages"),
        stage(partial(import_vectors, file=file, ids=ids, split=split, system=name, similarity=similarity), role),
        {"source": "vectors", "system": name, "split": split, "similarity": similarity, **files},
        {role: texts},
    )
