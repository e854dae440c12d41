"""Search among passages with a vector for each token: time a query, recall against scoring all, and bytes.

Each index is searched with each of the settings, one query at a time and all together, in turns; PyLate's index too, if
it is asked for. The vectors are those of a run, or made: a word has one, a token is its word's with noise of its own,
passages draw words by Zipf's law, and a query's tokens are some of a passage's with other noise.

    python -m benchmarks.late_interaction --workdir work/late --split dev --json late_interaction.json
    python -m venv ../pylate && ../pylate/bin/pip install pylate
    python -m benchmarks.late_interaction --workdir work/late --split dev --pylate ../pylate/bin/python
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.artefacts import make_embeddings
from benchmarks.pylate_index import PyLate
from benchmarks.timing import interleave, timed, write_report
from raydr.component import build
from raydr.data.embeddings import Embeddings
from raydr.data.opened import offsets_of
from raydr.data.vector_sets import VectorSets
from raydr.graph.places import Places, vectors_name
from raydr.indexing.config import IndexConfig, SearchConfig
from raydr.indexing.search import ShardSearcher
from raydr.indexing.shards import IndexShards
from raydr.models.scores.base import ScoreFunction
from raydr.models.token_pooling import pool_tokens
from raydr.stages.index import build_index
from raydr.stages.pool import ThisProcess
from raydr.store.artifact import Artifact, Building, begin
from raydr.store.identity import Identity

#: Words of the made language.
_WORDS = 30_000
#: Length of a token's noise beside its word's vector of length 1.
_NOISE = 0.6
_EXACT = "SQfp16:float16"


class Searched(Protocol):
    """An index, searched with some settings."""

    def search(self, queries: VectorSets) -> NDArray[np.int64]:
        """The rows of the best passages of each query, (queries, top_k)."""


@dataclass(frozen=True)
class Ours:
    searcher: ShardSearcher
    top_k: int

    def search(self, queries: VectorSets) -> NDArray[np.int64]:
        return self.searcher.search(queries, self.top_k).rows


@dataclass(frozen=True)
class Contender:
    name: str
    searched: Searched
    bytes: int
    build_seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", default="", help="a run's, whose vectors are searched; made ones if empty")
    parser.add_argument("--model", default="trained", help="of the run")
    parser.add_argument("--split", default="dev", help="whose queries are searched")
    parser.add_argument("--passages", type=int, default=50_000, help="made ones, or the first of the run's")
    parser.add_argument("--tokens", type=int, default=100, help="of a made passage")
    parser.add_argument("--query-tokens", type=int, default=16, help="of a made query")
    parser.add_argument("--queries", type=int, default=32)
    parser.add_argument("--dim", type=int, default=128, help="of made vectors")
    parser.add_argument("--top-k", type=int, default=100)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--train-rows", type=int, default=IndexConfig().train_rows)
    parser.add_argument("--indexes", nargs="+", default=["auto:codes"], help="FACTORY:VECTORS")
    parser.add_argument("--settings", nargs="+", default=[""], help="NPROBE/NUM_NEAREST/NUM_CANDIDATES; the defaults")
    parser.add_argument("--pooling", type=int, nargs="*", default=[], help="times fewer vectors, by token pooling")
    parser.add_argument("--pylate", default="", help="Python of an environment with PyLate")
    parser.add_argument("--pylate-bits", type=int, default=4, help="of a dimension's residual")
    parser.add_argument("--pylate-settings", nargs="+", default=["8/8192"], help="N_IVF_PROBE/N_FULL_SCORES")
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        run(arguments, Path(scratch))


def run(arguments: argparse.Namespace, scratch: Path) -> None:
    torch.set_num_threads(arguments.cpus)
    embeddings, queries = (read_vectors if arguments.workdir else make_vectors)(arguments, scratch)
    passages = Embeddings(embeddings)
    print(
        f"{len(passages):,} passages of {passages.num_vectors / len(passages):.1f} vectors, {len(queries)} queries of "
        f"{queries.lengths.mean():.1f}, {passages.dim} dimensions"
    )
    contenders = list(contend(arguments, scratch, embeddings))
    alone = [queries.slice(one, one + 1) for one in range(len(queries))]
    exact = contenders[0].searched.search(queries)
    found = {one.name: one.searched.search(queries) for one in contenders[1:]}
    # Scoring all passages once a query is enough to know its time.
    each = {contenders[0].name: [timed(partial(contenders[0].searched.search, one)) for one in alone[:8]]}
    each |= interleave(
        {one.name: partial(seconds_alone, one.searched, alone) for one in contenders[1:]}, arguments.repeats
    )
    processor = {one.name: processor_seconds(one.searched, alone[:8]) for one in contenders}
    together = interleave({one.name: partial(seconds, one.searched, queries) for one in contenders}, 1)
    rows = [
        {
            "index": one.name,
            "MB": one.bytes / 1e6,
            "build_seconds": one.build_seconds,
            "seconds_alone": statistics.median(each[one.name]),
            "processor_seconds": processor[one.name],
            "seconds_together": together[one.name][0] / len(queries),
            "recall": recall(found.get(one.name, exact), exact),
            "recall_of_10": recall(found.get(one.name, exact), exact[:, :10]),
        }
        for one in contenders
    ]
    for row in rows:
        print("  ".join(f"{key} {value:,.4g}" if not isinstance(value, str) else value for key, value in row.items()))
    write_report(arguments.json, "late_interaction", vars(arguments), {"rows": rows})


def seconds(searched: Searched, queries: VectorSets) -> float:
    return timed(partial(searched.search, queries))


def seconds_alone(searched: Searched, queries: list[VectorSets]) -> float:
    """The median over queries that are asked one after the other."""
    return statistics.median(seconds(searched, one) for one in queries)


def processor_seconds(searched: Searched, queries: list[VectorSets]) -> float:
    """Of this process, a query asked alone: what other work on the machine hardly changes."""
    started = time.process_time()
    for one in queries:
        searched.search(one)
    return (time.process_time() - started) / len(queries)


def contend(arguments: argparse.Namespace, scratch: Path, embeddings: Artifact) -> Iterator[Contender]:
    """Scoring all passages first."""
    made = [(name, embeddings) for name in (_EXACT, *arguments.indexes)]
    for factor in arguments.pooling:
        fewer = pooled(scratch / f"pooled-{factor}", embeddings, factor)
        made += [(f"{name}:pooled {factor}", fewer) for name in (_EXACT, *arguments.indexes)]
    for at, (name, indexed) in enumerate(made):
        factory, vectors, *_ = name.split(":")
        config = IndexConfig(
            factory=factory, vectors=vectors, train_rows=arguments.train_rows, cpus_per_task=arguments.cpus,
            train_cpus=arguments.cpus, shard_rows=10**8,
        )  # fmt: skip
        started = time.perf_counter()
        with begin(str(scratch / f"index-{at}"), Identity(kind="index")) as making:
            assert isinstance(making, Building)
            score = build(ScoreFunction, "sum_of_max")
            index = making.finish(build_index(making, ThisProcess(), indexed, settings=config, score=score))
        built = time.perf_counter() - started
        num_bytes, shards = sum(part.bytes for part in index.manifest.parts.values()), IndexShards(index)
        for settings in [""] if name.startswith(_EXACT) else arguments.settings:
            names = ("nprobe", "num_nearest", "num_candidates")
            given = dict(zip(names, map(int, filter(None, settings.split("/"))), strict=False))
            held = ShardSearcher(shards, range(shards.num_shards), SearchConfig(**given), arguments.cpus)
            yield Contender(f"{name} {settings}".strip(), Ours(held, arguments.top_k), num_bytes, built)
    if arguments.pylate:
        pylate = PyLate(arguments.pylate, scratch / "pylate", arguments.cpus)
        vectors, lengths = every(Embeddings(embeddings))
        built = timed(partial(pylate.build, vectors, lengths, arguments.pylate_bits))
        for settings in arguments.pylate_settings:
            probes, scores = map(int, settings.split("/"))
            theirs = pylate.searched(probes, scores, arguments.top_k)
            yield Contender(f"PyLate {arguments.pylate_bits} bits {settings}", theirs, pylate.num_bytes, built)


def pooled(path: Path, embeddings: Artifact, factor: int) -> Artifact:
    """The same passages with so many times fewer vectors."""
    vectors, lengths = every(Embeddings(embeddings))
    started = time.perf_counter()
    fewer = pool_tokens(VectorSets(vectors, offsets_of(lengths)), factor)
    print(f"pooled by {factor} in {time.perf_counter() - started:.0f} s: {len(fewer.vectors_TD):,} vectors")
    return make_embeddings(path, fewer, "passage")


def every(embeddings: Embeddings) -> tuple[NDArray[np.float16], NDArray[np.int64]]:
    """All vectors of all texts, and how many each has."""
    sets = VectorSets.join([embeddings.sets(part) for part in range(len(embeddings.part_names))])
    return sets.vectors_TD, sets.lengths


def recall(found: NDArray[np.int64], exact: NDArray[np.int64]) -> float:
    """Mean share of the best passages that are found."""
    return float(np.mean([np.isin(wanted, got).mean() for wanted, got in zip(exact, found, strict=True)]))


def read_vectors(arguments: argparse.Namespace, scratch: Path) -> tuple[Artifact, VectorSets]:
    """Passages and queries of a run."""
    places = Places.of(arguments.workdir)
    passages = Embeddings(places.open(vectors_name(arguments.model), "embeddings"))
    queries = Embeddings(places.open(vectors_name(arguments.model, arguments.split), "embeddings"))
    parts = range(int(np.searchsorted(passages.starts[:-1], arguments.passages)))
    first = VectorSets.join([passages.sets(part) for part in parts]).slice(0, arguments.passages)
    return make_embeddings(scratch / "passages", first, "passage"), queries.sets(0).slice(0, arguments.queries)


def make_vectors(arguments: argparse.Namespace, scratch: Path) -> tuple[Artifact, VectorSets]:
    """Passages and queries of a made language."""
    rng = np.random.default_rng(0)
    words = unit(rng.standard_normal((_WORDS, arguments.dim), dtype=np.float32))
    odds = 1 / np.arange(10, _WORDS + 10)
    drawn = rng.choice(_WORDS, size=(arguments.passages, arguments.tokens), p=odds / odds.sum())
    asked = drawn[: arguments.queries, : arguments.query_tokens]
    passages = make_embeddings(scratch / "passages", noisy(rng, words, drawn), "passage")
    return passages, noisy(rng, words, asked)


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
