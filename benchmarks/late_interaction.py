"""Search among passages with a vector for each token: time a query, recall against scoring all, and bytes.

Vectors are made: a word has one, a token is its word's with noise of its own, passages draw words by Zipf's law, and a
query's tokens are some of a passage's with other noise. So tokens lie in clumps, as those of a trained model do.

    python -m benchmarks.late_interaction --passages 50000 --json late_interaction.json
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.artefacts import make_embeddings
from benchmarks.timing import timed, write_report
from raydr.component import build
from raydr.data.vector_sets import VectorSets
from raydr.indexing.config import IndexConfig, SearchConfig
from raydr.indexing.merge import Found
from raydr.indexing.search import ShardSearcher
from raydr.indexing.shards import IndexShards
from raydr.models.scores.base import ScoreFunction
from raydr.stages.index import build_index
from raydr.stages.pool import ThisProcess
from raydr.store.artifact import Building, begin
from raydr.store.identity import Identity

#: Words of the made language.
_WORDS = 30_000
#: Length of a token's noise beside its word's vector of length 1.
_NOISE = 0.6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=50_000)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--query-tokens", type=int, default=16)
    parser.add_argument("--queries", type=int, default=32)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--top-k", type=int, default=100)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--train-rows", type=int, default=200_000)
    parser.add_argument("--nprobe", type=int, default=16)
    parser.add_argument("--num-nearest", type=int, default=1024)
    parser.add_argument("--num-candidates", type=int, default=1024)
    parser.add_argument(
        "--indexes", nargs="+", default=["SQfp16:float16", "IVF4096,PQ128x4:codes", "IVF4096,PQ128x2:codes"]
    )
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        run(arguments, Path(scratch))


def run(arguments: argparse.Namespace, scratch: Path) -> None:
    rng = np.random.default_rng(0)
    passages, queries = make_texts(rng, arguments)
    embeddings = make_embeddings(scratch / "passages", passages, "passage")
    score = build(ScoreFunction, "sum_of_max")
    settings = SearchConfig(
        nprobe=arguments.nprobe, num_nearest=arguments.num_nearest, num_candidates=arguments.num_candidates
    )
    exact: Found | None = None
    rows = []
    for at, name in enumerate(arguments.indexes):
        factory, _, vectors = name.partition(":")
        config = IndexConfig(
            factory=factory, vectors=vectors, shard_rows=10**9, train_rows=arguments.train_rows,
            cpus_per_task=arguments.cpus,
        )  # fmt: skip
        started = time.perf_counter()
        with begin(str(scratch / f"index-{at}"), Identity(kind="index")) as making:
            assert isinstance(making, Building)
            index = making.finish(build_index(making, ThisProcess(), embeddings, settings=config, score=score))
        built = time.perf_counter() - started
        searcher = ShardSearcher(IndexShards(index), [0], settings, arguments.cpus)
        searcher.search(queries.slice(0, 1), arguments.top_k)
        started = time.perf_counter()
        found = searcher.search(queries, arguments.top_k)
        seconds = time.perf_counter() - started
        alone = [timed(partial(searcher.search, queries.slice(one, one + 1), arguments.top_k)) for one in range(5)]
        exact = exact or found
        row = {
            "index": name,
            "bytes": sum(part.bytes for part in index.manifest.parts.values()),
            "build_seconds": built,
            "seconds_a_query": seconds / len(queries),
            "seconds_alone": statistics.median(alone),
            "recall": recall(found, exact),
        }
        rows.append(row)
        print("  ".join(f"{key} {value:,.4g}" if not isinstance(value, str) else value for key, value in row.items()))
    write_report(arguments.json, "late_interaction", vars(arguments), {"rows": rows})


def recall(found: Found, exact: Found) -> float:
    """Mean share of the first index's passages that are found."""
    shares = [np.isin(wanted, got).mean() for wanted, got in zip(exact.rows, found.rows, strict=True)]
    return float(np.mean(shares))


def make_texts(rng: np.random.Generator, arguments: argparse.Namespace) -> tuple[VectorSets, VectorSets]:
    """Passages and queries."""
    words = unit(rng.standard_normal((_WORDS, arguments.dim), dtype=np.float32))
    odds = 1 / np.arange(10, _WORDS + 10)
    drawn = rng.choice(_WORDS, size=(arguments.passages, arguments.tokens), p=odds / odds.sum())
    asked = drawn[: arguments.queries, : arguments.query_tokens]
    return noisy(rng, words, drawn), noisy(rng, words, asked)


def noisy(rng: np.random.Generator, words: NDArray[np.float32], drawn: NDArray[np.int64]) -> VectorSets:
    """Tokens of words, every text with as many."""
    num, length = drawn.shape
    vectors = np.empty((num * length, words.shape[1]), dtype=np.float16)
    for start in range(0, len(vectors), 100_000):
        own = words[drawn.ravel()[start : start + 100_000]]
        noise = unit(rng.standard_normal(own.shape, dtype=np.float32))
        vectors[start : start + len(own)] = unit(own + _NOISE * noise).astype(np.float16)
    return VectorSets(vectors, np.arange(num + 1) * length)


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scaled to length 1."""
    scaled: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return scaled


if __name__ == "__main__":
    main()
