"""Index building through raydr against bare FAISS: seconds for the same vectors, the same index and the same threads.

Bare FAISS holds all vectors in memory in float32, trains on the sample that raydr would draw, adds, and writes one
file. ``raydr core`` does the same from memory-mapped float16 parts, a part at a time; ``raydr stage`` is ``raydr
index`` as a whole: Ray's tasks, ids and checksums, start-up included.

    python -m benchmarks.index --json index.json
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.artefacts import make, make_embeddings
from benchmarks.search import unit_vectors
from benchmarks.timing import interleave, ratios, timed, write_report
from raydr.data.embeddings import Embeddings
from raydr.indexing.backend import load_faiss
from raydr.indexing.build import fill, needs_training, plan_shards, sample_rows, train_index, write_index
from raydr.indexing.config import IndexConfig
from raydr.indexing.factory import make_index
from raydr.models.scores.dual import Dual
from raydr.runtime.cluster import RayConfig, connected
from raydr.stages.index import build_index
from raydr.store.artifact import Artifact


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--factories", nargs="+", default=["Flat", "IVF256,Flat", "IVF256,SQfp16"])
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    if arguments.passages > 2_000_000:
        parser.error("--passages must be at most 2,000,000, which is one shard")
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        connected(RayConfig(num_cpus=arguments.cpus, num_gpus=0, temp_dir=f"{scratch}/ray")),
    ):
        run(arguments, Path(scratch))


def run(arguments: argparse.Namespace, scratch: Path) -> None:
    found = unit_vectors(np.random.default_rng(0), arguments.passages, arguments.dim)
    passages = make_embeddings(scratch / "passages", found, "passage")
    figures: dict[str, Any] = {}
    print(f"{arguments.passages:,} × {arguments.dim}, {arguments.cpus} CPUs, medians of {arguments.repeats} rounds")
    print(f"{'':16} {'bare faiss, s':>16} {'raydr core, s':>16} {'× bare':>8} {'raydr stage, s':>16} {'× bare':>8}")
    for factory in arguments.factories:
        seconds = measure(factory, passages, arguments, scratch)
        figures[factory] = seconds
        bare, core, stage = (statistics.median(one) for one in seconds.values())
        times = [ratios(seconds, name, "bare faiss") for name in ("raydr core", "raydr stage")]
        print(f"{factory:16} {bare:16.2f} {core:16.2f} {times[0]:8.2f} {stage:16.2f} {times[1]:8.2f}")
    write_report(arguments.json, "index", vars(arguments), {"seconds": figures})


def measure(factory: str, passages: Artifact, arguments: argparse.Namespace, scratch: Path) -> dict[str, list[float]]:
    """Seconds of every candidate, for one kind of index."""
    settings = IndexConfig(factory=factory, cpus_per_task=arguments.cpus)
    vectors = Embeddings(passages)
    [plan] = plan_shards(vectors.starts, settings.shard_rows)
    faiss = load_faiss(arguments.cpus)
    trained = needs_training(factory, arguments.dim)

    def bare() -> None:
        whole = np.concatenate([vectors.vectors(at) for at in range(len(vectors.part_names))]).astype(np.float32)
        index = faiss.index_factory(arguments.dim, factory, faiss.METRIC_INNER_PRODUCT)
        if trained:
            index.train(whole[sample_rows(len(whole), settings.train_rows)])
        index.add(whole)
        faiss.write_index(index, str(scratch / "bare.faiss"))

    def core() -> None:
        load_faiss(arguments.cpus)
        empty = train_index(factory, vectors, settings.train_rows) if trained else make_index(factory, vectors.dim)
        write_index(fill(empty, vectors, plan), str(scratch / "core.faiss"))

    def stage() -> None:
        make(scratch / "index", "index", build_index, passages, score=Dual(), settings=settings)

    candidates = {"bare faiss": bare, "raydr core": core, "raydr stage": stage}
    return interleave({name: partial(timed, work) for name, work in candidates.items()}, arguments.repeats)


if __name__ == "__main__":
    main()
