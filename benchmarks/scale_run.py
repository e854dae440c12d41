"""One size of :mod:`benchmarks.scale`, in a process and a Ray of its own.

Writes one JSON object a line to standard output: ``{"begin": STAGE}`` and ``{"end": STAGE, "seconds": ...}`` for each
stage, and ``{"facts": {...}}`` at the end.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from benchmarks.artefacts import make, make_artifact
from benchmarks.scale_stub import ENCODER, TOKENIZER, write_sources
from raydr.artefacts.dataset import prepare_corpus, prepare_dataset
from raydr.artefacts.embeddings import encode_texts
from raydr.artefacts.index import build_index
from raydr.artefacts.negatives import mine
from raydr.artefacts.run import Run
from raydr.artefacts.search import search
from raydr.artefacts.sources import find_sources
from raydr.config.run import RunConfig
from raydr.data.dataset import Dataset
from raydr.data.tables import pairs_of
from raydr.distributed.arithmetic import resolve_arithmetic
from raydr.distributed.cluster import RayConfig, connected
from raydr.distributed.ray_pool import RayPool
from raydr.models.scores.dual import Dual
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder
from raydr.store.identity import Identity

#: The indexes, by what they are called in the tables.
INDEXES = {"IVF": "IVF1024,SQfp16", "exact": "Flat"}
SPLIT = "train"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--passages", type=int, required=True)
    parser.add_argument("--scratch", required=True, help="an empty folder; what is made stays there")
    arguments = parser.parse_args()
    scratch = Path(arguments.scratch)
    ray_config = RayConfig(
        num_cpus=arguments.cpus, num_gpus=0, object_store_gib=arguments.object_store_gib, temp_dir=f"{scratch}/ray"
    )
    with connected(ray_config):
        run(arguments, scratch)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is the same for all sizes."""
    parser.add_argument("--queries", type=int, default=2_000)
    parser.add_argument("--part-rows", type=int, default=10_000)
    parser.add_argument("--shard-rows", type=int, default=500_000)
    parser.add_argument("--train-rows", type=int, default=100_000)
    parser.add_argument("--top-k", type=int, default=100)
    parser.add_argument("--nprobe", type=int, default=64)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--object-store-gib", type=float, default=1.0)


def run(arguments: argparse.Namespace, scratch: Path) -> None:
    config = make_config(arguments, scratch / "raw")
    making = ray.remote(num_cpus=1)(write_sources)
    ray.get(making.remote(scratch / "raw", arguments.passages, arguments.queries))
    model = make_artifact(scratch / "model", Identity(kind="model"), {}, {})
    with stage("prepare"):
        sources = find_sources(config.data.reader)
        how = {"reader": config.data.reader, "sources": sources, "data": config.data}
        corpus = make(scratch / "corpus", "corpus", prepare_corpus, **how)
        dataset = make(scratch / "dataset", "dataset", prepare_dataset, corpus, **how, seed=config.seed)
    arithmetic = resolve_arithmetic(config.encode, RayPool())
    stubs = {"settings": config.encode, "arithmetic": arithmetic, "tokenizer": TOKENIZER, "encoder": ENCODER}
    with stage("encode passages"):
        passages = make(scratch / "passages", "embeddings", encode_texts, model, corpus, **stubs)
    with stage("encode queries"):
        queries = make(scratch / "queries", "embeddings", encode_texts, model, dataset=dataset, split=SPLIT, **stubs)
    runs: dict[str, Artifact] = {}
    for name, factory in INDEXES.items():
        settings = config.index.model_copy(update={"factory": factory})
        with stage(f"index {name}"):
            index = make(scratch / f"index-{name}", "index", build_index, passages, score=Dual(), settings=settings)
        with stage(f"search {name}"):
            how = {"settings": config.search, "top_k": config.search.top_k, "system": name}
            runs[name] = make(scratch / f"run-{name}", "run", search, index, queries, **how)
    with stage("mine"):
        how = {"settings": config.negatives, "split": SPLIT, "miner": "ann", "round": 0}
        make(scratch / "negatives", "negatives", mine, dataset, corpus, runs["exact"], **how)
    judging = ray.remote(num_cpus=1)(share_found)
    shares = {
        f"queries whose passage {name} finds": ray.get(judging.remote(made.folder, dataset.folder))
        for name, made in runs.items()
    }
    tell({"facts": {**shares, "parts": -(-arguments.passages // arguments.part_rows), "disk": sizes(scratch)}})


def sizes(scratch: Path) -> dict[str, int]:
    """Bytes on disk by folder."""
    return {
        folder.name: sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        for folder in sorted(scratch.iterdir())
        if folder.is_dir() and folder.name != "ray"
    }


def make_config(arguments: argparse.Namespace, raw: Path) -> RunConfig:
    return RunConfig.parse(
        {
            "data": {
                "reader": {"name": "msmarco", "path": str(raw), "splits": [SPLIT]},
                "part_rows": arguments.part_rows,
            },
            "encode": {"dtype": "float32", "cpus_per_actor": 1, "cpus_per_tokenizer": 0.5},
            "index": {"shard_rows": arguments.shard_rows, "train_rows": arguments.train_rows},
            "search": {"top_k": arguments.top_k, "nprobe": arguments.nprobe, "batch_queries": 256},
            "negatives": {"miner": "run", "depth": 30},
        }
    )


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Tell the watching process when a stage begins and ends."""
    tell({"begin": name})
    started = time.perf_counter()
    yield
    tell({"end": name, "seconds": time.perf_counter() - started})


def tell(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def share_found(run: Folder, dataset: Folder) -> float:
    """The share of the queries whose passage is among the results."""
    qrels = Dataset.open(dataset).qrels(SPLIT)
    wanted = set(pairs_of(qrels))
    return sum(pair in wanted for part in Run.open(run).parts() for pair in pairs_of(part)) / len(wanted)


if __name__ == "__main__":
    main()
