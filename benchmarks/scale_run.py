"""A size of :mod:`benchmarks.scale`, in its own process with its own Ray; it resumes after earlier processes.

It prints a JSON object on each line: ``{"begin": STAGE}`` and ``{"end": STAGE}`` for each stage, and ``{"facts":
{...}}`` at the end.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import ray

from benchmarks.scale_stub import ENCODER, TOKENIZER, mark_of, write_sources, write_vectors
from raydr.artefacts.dataset import prepare_corpus, prepare_dataset
from raydr.artefacts.embeddings import encode_texts
from raydr.artefacts.imported_vectors import import_vectors
from raydr.artefacts.index import build_index
from raydr.artefacts.model import train
from raydr.artefacts.negatives import mine
from raydr.artefacts.run import Run
from raydr.artefacts.search import search
from raydr.artefacts.sources import find_sources
from raydr.config.run import RunConfig
from raydr.data.dataset import Dataset
from raydr.data.embeddings import Embeddings
from raydr.data.tables import pairs_of
from raydr.distributed.arithmetic import resolve_arithmetic
from raydr.distributed.cluster import RayConfig, connected
from raydr.distributed.ray_pool import RayPool
from raydr.models.config import ModelConfig
from raydr.models.scores.dual import Dual
from raydr.store.artifact import Artifact
from raydr.store.building import begin
from raydr.store.folder import Folder
from raydr.store.identity import Identity
from raydr.training.config import TrainConfig
from raydr.training.training import Training

#: Factory strings of the indexes, by their name in the tables.
INDEXES = {"IVF": "IVF1024,SQfp16", "exact": "Flat"}
SPLIT = "train"
#: Shape of the trained retriever: layers, width, heads, inner width.
LEARNER = (2, 64, 2, 128)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, parents=[common_arguments()])
    parser.add_argument("--passages", type=int, required=True)
    parser.add_argument("--scratch", required=True, help="folder of the artefacts, which stay there")
    arguments = parser.parse_args()
    scratch = Path(arguments.scratch)
    ray_config = RayConfig(
        num_cpus=arguments.cpus, num_gpus=0, object_store_gib=arguments.object_store_gib, temp_dir=f"{scratch}/ray"
    )
    with connected(ray_config):
        run(arguments, scratch)


def common_arguments() -> argparse.ArgumentParser:
    """Return a parser of the arguments that are equal for all sizes."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--queries", type=int, default=2_000)
    parser.add_argument("--words", type=int, default=130, help="of the longest passages; the shortest have half")
    parser.add_argument("--part-rows", type=int, default=10_000)
    parser.add_argument("--shard-rows", type=int, default=500_000)
    parser.add_argument("--train-rows", type=int, default=100_000)
    parser.add_argument("--top-k", type=int, default=100)
    parser.add_argument("--nprobe", type=int, default=64)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--object-store-gib", type=float, default=1.0)
    return parser


def run(arguments: argparse.Namespace, scratch: Path) -> None:
    config = make_config(arguments, scratch / "raw")
    making = ray.remote(num_cpus=1)(write_sources)
    ray.get(making.remote(scratch / "raw", arguments.passages, arguments.queries, arguments.words))
    model = make(scratch / "model", "model", lambda building, pool: {})
    with stage("prepare"):
        sources = find_sources(config.data.reader)
        options = {"reader": config.data.reader, "sources": sources, "data": config.data}
        corpus = make(scratch / "corpus", "corpus", prepare_corpus, **options)
        dataset = make(scratch / "dataset", "dataset", prepare_dataset, corpus, **options, seed=config.seed)
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
            options = {"settings": config.search, "top_k": config.search.top_k, "system": name}
            runs[name] = make(scratch / f"run-{name}", "run", search, index, queries, **options)
    with stage("mine"):
        options = {"settings": config.negatives, "split": SPLIT, "miner": "ann", "round": 0}
        negatives = make(scratch / "negatives", "negatives", mine, dataset, corpus, runs["exact"], **options)
    imported = import_made(scratch, arguments.passages, corpus)
    checkpoint = ray.get(ray.remote(num_cpus=1)(save_learner).remote(scratch / "checkpoint"))
    with stage("train"):
        make(scratch / "round", "model", train, None, dataset, corpus, negatives, training=training_of(checkpoint))
    judging = ray.remote(num_cpus=1)(share_found)
    shares = {
        f"queries whose passage {name} finds": ray.get(judging.remote(made.folder, dataset.folder))
        for name, made in runs.items()
    }
    shares["passages with their imported vector"] = ray.get(
        ray.remote(num_cpus=1)(share_marked).remote(imported.folder)
    )
    tell({"facts": {**shares, "parts": -(-arguments.passages // arguments.part_rows), "disk": sizes(scratch)}})


def make(path: Path, kind: str, work: Callable[..., dict[str, Any]], *inputs: Any, **settings: Any) -> Artifact:
    """Make or complete an artefact on Ray; settings of a size never change."""
    fingerprints = {source.kind: source.fingerprint for source in inputs if isinstance(source, Artifact)}
    with begin(str(path), Identity(kind=kind, inputs=fingerprints)) as making:
        if isinstance(making, Artifact):
            return making
        return making.finish(work(making, RayPool(), *inputs, **settings))


def save_learner(folder: Path) -> str:
    """Save the starting checkpoint of the training, if it is missing; return its folder."""
    # Imported here, so that the process that starts the stages loads PyTorch only to train.
    from benchmarks.shapes import Shape, save_checkpoint

    return str(folder) if folder.exists() else save_checkpoint(Shape(*LEARNER), "", folder)


def training_of(checkpoint: str) -> Training:
    """Return the settings of a training over the mined negatives for an epoch."""
    settings = {"num_epochs": 1, "batch_size": 32, "num_hard_negatives": 4, "dtype": "float32", "keep": "last"}
    return Training(
        model=ModelConfig.model_validate({"checkpoint": checkpoint}),
        train=TrainConfig.model_validate(settings),
        train_split=SPLIT,
        dev_split="",
        seed=0,
    )


def import_made(scratch: Path, num_passages: int, corpus: Artifact) -> Artifact:
    """Import synthetic vectors, and remove their files."""
    source, path = scratch / "other", scratch / "imported"
    if not path.exists():
        ray.get(ray.remote(num_cpus=1)(write_vectors).remote(source, num_passages))
    with stage("import vectors"):
        options: dict[str, Any] = {"file": str(source / "vectors.npy"), "ids": str(source / "ids.txt"), "checksums": []}
        imported = make(path, "embeddings", import_vectors, corpus, **options, system="other", similarity="dot")
    shutil.rmtree(source, ignore_errors=True)
    return imported


def sizes(scratch: Path) -> dict[str, int]:
    """Return the bytes on disk by folder."""
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
    """Report the begin and the end of a stage to the measuring process."""
    tell({"begin": name})
    yield
    tell({"end": name})


def tell(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def share_marked(imported: Folder) -> float:
    """Return the share of the passages in the first part that have their own vector."""
    embeddings = Embeddings.open(imported)
    numbers = np.array([int(text_id[1:]) for text_id in embeddings.ids(0).to_pylist()])
    return float((embeddings.vectors(0)[:, 0] == mark_of(numbers)).mean())


def share_found(run: Folder, dataset: Folder) -> float:
    """Return the share of the queries whose passage is among the results."""
    qrels = Dataset.open(dataset).qrels(SPLIT)
    wanted = set(pairs_of(qrels))
    return sum(pair in wanted for part in Run.open(run).parts() for pair in pairs_of(part)) / len(wanted)


if __name__ == "__main__":
    main()
