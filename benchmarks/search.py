"""Queries per second of search with raydr, and with bare FAISS on the same index.

Bare FAISS is an ``index.search`` call for each batch of queries, on raydr's shard files in memory, with the same
batches and threads; it returns row numbers and no ids. ``raydr core`` is the work of a search actor, which also
resolves ties. ``raydr stage`` is ``raydr search`` as a whole: Ray, ids, ranks and the Parquet run, timed from the first
written batch.

    python -m benchmarks.search --json search.json
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.artefacts import make, make_embeddings
from benchmarks.timing import interleave, print_rates, steady_rate, timed, write_report
from raydr.artefacts.index import build_index
from raydr.artefacts.search import search
from raydr.distributed.cluster import RayConfig, connected
from raydr.indexing.config import IndexConfig, SearchConfig
from raydr.indexing.faiss_backend import load_faiss
from raydr.indexing.search import ShardSearcher
from raydr.indexing.shards import IndexShards
from raydr.models.scores.dual import Dual


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=50_000)
    parser.add_argument("--queries", type=int, default=20_480)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--factory", default="Flat")
    parser.add_argument("--top-k", type=int, default=100)
    parser.add_argument("--batch-queries", type=int, default=1024)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    if arguments.queries % arguments.batch_queries or arguments.passages > 2_000_000:
        parser.error("--queries must be a multiple of --batch-queries, --passages at most 2,000,000 (one shard)")
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        connected(RayConfig(num_cpus=arguments.cpus, num_gpus=0, temp_dir=f"{scratch}/ray")),
    ):
        run(arguments, Path(scratch))


def run(arguments: argparse.Namespace, scratch: Path) -> None:
    rng = np.random.default_rng(0)
    settings = SearchConfig(batch_queries=arguments.batch_queries)
    passages = make_embeddings(scratch / "passages", unit_vectors(rng, arguments.passages, arguments.dim), "passage")
    vectors = unit_vectors(rng, arguments.queries, arguments.dim)
    # FAISS's default, which raydr changes when it loads FAISS.
    default = importlib.import_module("faiss").cvar.distance_compute_blas_threshold
    queries = make_embeddings(scratch / "queries", vectors, "query", part_rows=arguments.queries)
    index = make(
        scratch / "index", "index", build_index, passages, score=Dual(), settings=IndexConfig(factory=arguments.factory)
    )

    shards = IndexShards(index)
    searcher = ShardSearcher(shards, range(shards.num_shards), settings, arguments.cpus)
    faiss = load_faiss()
    faiss.omp_set_num_threads(arguments.cpus)
    bare = faiss.read_index(shards.artifact.local("shard-000.faiss"))
    ivf = faiss.try_extract_index_ivf(bare)
    if ivf is not None:
        ivf.nprobe = min(settings.nprobe, ivf.nlist)
    batches = [
        vectors[at : at + arguments.batch_queries].astype(np.float32)
        for at in range(0, len(vectors), arguments.batch_queries)
    ]

    def bare_faiss() -> float:
        ours, faiss.cvar.distance_compute_blas_threshold = faiss.cvar.distance_compute_blas_threshold, default
        rate = len(vectors) / timed(lambda: [bare.search(batch, arguments.top_k) for batch in batches])
        faiss.cvar.distance_compute_blas_threshold = ours
        return rate

    def raydr_core() -> float:
        return len(vectors) / timed(lambda: [searcher.search(batch, arguments.top_k) for batch in batches])

    def raydr_stage() -> float:
        output = scratch / "run"
        make(output, "run", search, index, queries, settings=settings, top_k=arguments.top_k, system="dense")
        return steady_rate(output, "part-*.parquet", lambda part: arguments.batch_queries)

    bare_faiss(), raydr_core(), raydr_stage()
    figures = interleave(
        {"bare faiss": bare_faiss, "raydr core": raydr_core, "raydr stage": raydr_stage}, arguments.repeats
    )
    print(
        f"{arguments.factory}, {arguments.passages:,} × {arguments.dim}, top {arguments.top_k}, {arguments.cpus} CPUs, "
        f"medians of {arguments.repeats} interleaved rounds"
    )
    print_rates(figures, "queries", "bare faiss")
    medians = {name: statistics.median(rates) for name, rates in figures.items()}
    write_report(arguments.json, "search", vars(arguments), {"queries_per_second": figures, "medians": medians})


def unit_vectors(rng: np.random.Generator, num: int, dim: int) -> NDArray[np.float16]:
    """Draw random directions."""
    vectors = rng.standard_normal((num, dim), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float16)


if __name__ == "__main__":
    main()
