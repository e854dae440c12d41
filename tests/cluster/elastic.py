"""Encodes and searches on a cluster whose nodes come and go, and says what happened. Run by ``test_elastic``.

    python -m tests.cluster.elastic FOLDER

A corpus is encoded on one node; again, and a node joins in the middle; again, and that node is lost in the middle of a
part. Queries are searched on one node; again on two, one of which is lost. BM25 indexes and searches one shard on one
node, and several shards on two. It is a process of its own, since a process belongs to one Ray. The last line of
standard output is one JSON object.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from raydr.artefacts.bm25 import build_bm25, search_bm25
from raydr.artefacts.embeddings import encode_texts
from raydr.artefacts.index import build_index
from raydr.artefacts.search import search
from raydr.distributed.arithmetic import Arithmetic
from raydr.distributed.cluster import RayConfig, connected, quiet_ray_logs
from raydr.distributed.ray_pool import RayPool
from raydr.indexing.config import IndexConfig, SearchConfig
from raydr.models.encode_config import EncodeConfig
from raydr.models.scores.dual import Dual
from raydr.negatives.config import BM25Config
from raydr.store.artifact import Artifact
from raydr.store.identity import MANIFEST
from tests import made_artefacts
from tests.artefacts import stub
from tests.cluster.gated import ENCODER, wait_for_files
from tests.conftest import make_sentence
from tests.made import integer_vectors, make_corpus, make_dataset, make_embeddings, make_model
from tests.made_stage import make

#: A node has room for one encoder and one tokenising task, not for two encoders; and for two search actors.
NODE = {"num_cpus": 2, "object_store_memory": 100 * 2**20}
ENCODE = EncodeConfig(min_actors=1, max_actors=2, cpus_per_actor=1.25, cpus_per_tokenizer=0.5)
SEARCH = SearchConfig(cpus_per_actor=1, batch_queries=1)
NUM_PARTS = 24
NUM_QUERIES = 400


def main(folder: Path) -> None:
    quiet_ray_logs()
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        # What runs is in another thread: nodes are added from the main one only.
        with connected(RayConfig(address=cluster.address)), ThreadPoolExecutor(1) as thread:
            facts = {**encode(cluster, folder, thread), **find(cluster, folder, thread), **lexical(cluster, folder)}
    finally:
        cluster.shutdown()
    sys.stdout.write(f"{json.dumps(facts)}\n")


def encode(cluster: Cluster, folder: Path, thread: ThreadPoolExecutor) -> dict[str, Any]:
    head = ray.get_runtime_context().get_node_id()
    corpus = make_corpus(folder / "corpus", [f"passage {at} of a made corpus" for at in range(10 * NUM_PARTS)], 10)

    def start(name: str, **orders: str) -> tuple[Path, Future[Artifact]]:
        model = make_model(folder / name / "model")
        for order, value in orders.items():
            Path(model.folder.path(order.replace("_", "-"))).write_text(value)
        stubs = {"tokenizer": stub.TOKENIZER, "encoder": ENCODER}
        made = thread.submit(
            make, folder / name / "out", "embeddings", encode_texts, model, corpus, pool=RayPool(), settings=ENCODE,
            arithmetic=Arithmetic("float32", "cpu", 4096), **stubs,
        )  # fmt: skip
        return Path(model.folder.root), made

    alone, encoded = start("alone")
    facts = {"alone": _encoded(alone, encoded, head)}

    joined, encoded = start("joined", min_nodes="2")
    wait_for_files(joined, f"part-{head}-*-0", 1, "the main thread")
    node = cluster.add_node(**NODE)
    facts["joined"] = _encoded(joined, encoded, head)

    lost, encoded = start("lost", min_nodes="2", doomed=node.node_id)
    wait_for_files(lost, f"part-{node.node_id}-*-1", 1, "the main thread")
    unfinished = not encoded.done()
    cluster.remove_node(node, allow_graceful=False)
    facts["lost"] = {"unfinished": unfinished, **_encoded(lost, encoded, head)}
    return facts


def _encoded(model: Path, encoded: Future[Artifact], head: str) -> dict[str, Any]:
    checksums = _checksums(encoded.result())
    marks = [mark.name for mark in model.glob("part-*")]
    on_head = sum(head in mark for mark in marks)
    return {"checksums": checksums, "started on the head node": on_head, "started elsewhere": len(marks) - on_head}


def find(cluster: Cluster, folder: Path, thread: ThreadPoolExecutor) -> dict[str, Any]:
    passages = make_embeddings(folder / "passages", integer_vectors(2_000, 8, seed=0), part_rows=500)
    queries = make_embeddings(folder / "queries", integer_vectors(NUM_QUERIES, 8, seed=1), part_rows=100, side="query")
    settings = IndexConfig(factory="Flat", shard_rows=1_000)
    index = make(folder / "index", "index", build_index, passages, pool=RayPool(), score=Dual(), settings=settings)
    how = {"pool": RayPool(), "settings": SEARCH, "top_k": 10, "system": "dense"}
    alone = make(folder / "found-alone", "run", search, index, queries, **how)

    node = cluster.add_node(**NODE)
    output = folder / "found-lost"
    future = thread.submit(make, output, "run", search, index, queries, **how)
    wait_for_files(output, "part-*.parquet", NUM_QUERIES // 10, "the main thread")
    # Taking it away may last longer than the search on a busy machine.
    unfinished = not (output / MANIFEST).exists()
    cluster.remove_node(node, allow_graceful=False)
    return {
        "found alone": {"checksums": _checksums(alone)},
        "found, one lost": {"unfinished": unfinished, "checksums": _checksums(future.result())},
    }


def lexical(cluster: Cluster, folder: Path) -> dict[str, Any]:
    texts = [make_sentence(seed, 12) for seed in range(60)]
    passages = [{"passage_id": f"p{at}", "title": "", "text": text} for at, text in enumerate(texts)]
    corpus = made_artefacts.make_corpus(folder / "texts", passages, part_rows=10)
    dataset = make_dataset(folder / "questions", "dev", texts[::4], part_rows=5)

    def bm25_run(name: str, shard_rows: int) -> dict[str, Any]:
        how: dict[str, Any] = {"settings": BM25Config(), "shard_rows": shard_rows}
        index = make(folder / f"bm25-{name}", "bm25", build_bm25, corpus.artifact, pool=RayPool(), **how)
        inputs = (dataset, corpus.artifact, index)
        run = make(folder / f"bm25-run-{name}", "run", search_bm25, *inputs, pool=RayPool(), split="dev", top_k=20)
        return {"shards": len(index.info["starts"]), "checksums": _checksums(run)}

    alone = bm25_run("whole", 1_000)
    cluster.add_node(**NODE)
    return {"bm25 in one shard": alone, "bm25 in shards": bm25_run("sharded", 10)}


def _checksums(artifact: Artifact) -> dict[str, str]:
    artifact.verify()
    return {name: part.checksum for name, part in artifact.manifest.parts.items()}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
