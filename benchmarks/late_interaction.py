"""Search with a vector for each token: time per query, recall relative to exact search, and index size.

Each index is searched with all settings, one query at a time and all queries together, in interleaved rounds. PyLate's
index is optional. The vectors are those of a run.

    python -m benchmarks.late_interaction --workdir work/late --split dev --json late_interaction.json
    python -m venv ../pylate && ../pylate/bin/pip install pylate
    python -m benchmarks.late_interaction --workdir work/late --split dev --pylate ../pylate/bin/python
"""

from __future__ import annotations

import argparse
import inspect
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.artefacts import make_embeddings
from benchmarks.timing import interleave, timed, write_report
from raydr.artefacts.index import build_index
from raydr.artefacts.places import Places, vectors_name
from raydr.component import build
from raydr.data.embeddings import Embeddings, VectorSets
from raydr.distributed.pool import ThisProcess
from raydr.indexing.config import IndexConfig, SearchConfig
from raydr.indexing.search import ShardSearcher
from raydr.indexing.shards import IndexShards
from raydr.models.scores.base import ScoreFunction
from raydr.store.artifact import Artifact
from raydr.store.building import Building, begin
from raydr.store.identity import Identity

_EXACT = "SQfp16:float16"


#: Search of an index with settings: returns the rows of the top passages of each query, shape (queries, top_k).
Search = Callable[[VectorSets], NDArray[np.int64]]


@dataclass(frozen=True)
class Contender:
    name: str
    search: Search
    bytes: int
    build_seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", required=True, help="working folder of the run whose vectors are searched")
    parser.add_argument("--model", default="trained", help="model of the run")
    parser.add_argument("--split", default="dev", help="split of the queries")
    parser.add_argument("--passages", type=int, default=50_000, help="number of passages, from the first on")
    parser.add_argument("--queries", type=int, default=32)
    parser.add_argument("--top-k", type=int, default=100)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--train-rows", type=int, default=IndexConfig().train_rows)
    parser.add_argument("--indexes", nargs="+", default=["auto:codes"], help="FACTORY:VECTORS")
    parser.add_argument("--settings", nargs="+", default=[""], help="NPROBE/NUM_NEAREST/NUM_CANDIDATES")
    parser.add_argument("--pylate", default="", help="Python of an environment with PyLate")
    parser.add_argument("--pylate-bits", type=int, default=4, help="bits of a dimension's residual")
    parser.add_argument("--pylate-settings", nargs="+", default=["8/8192"], help="N_IVF_PROBE/N_FULL_SCORES")
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        run(arguments, Path(scratch))


def run(arguments: argparse.Namespace, scratch: Path) -> None:
    torch.set_num_threads(arguments.cpus)
    embeddings, queries = read_vectors(arguments, scratch)
    passages = Embeddings(embeddings)
    print(
        f"{len(passages):,} passages of {passages.num_vectors / len(passages):.1f} vectors, {len(queries)} queries of "
        f"{queries.lengths.mean():.1f}, {passages.dim} dimensions"
    )
    contenders = list(contend(arguments, scratch, embeddings))
    alone = [queries.slice(at, at + 1) for at in range(len(queries))]
    results = {contender.name: contender.search(queries) for contender in contenders}
    exact = results[contenders[0].name]
    # Exact search is slow, and a single round measures its time well enough.
    alone_seconds = {contenders[0].name: [timed(partial(contenders[0].search, query)) for query in alone[:8]]}
    alone_seconds |= interleave(
        {contender.name: partial(seconds_alone, contender.search, alone) for contender in contenders[1:]},
        arguments.repeats,
    )
    processor = {contender.name: processor_seconds(contender.search, alone[:8]) for contender in contenders}
    together = {contender.name: timed(partial(contender.search, queries)) for contender in contenders}
    rows = [
        {
            "index": contender.name,
            "MB": contender.bytes / 1e6,
            "build_seconds": contender.build_seconds,
            "seconds_alone": statistics.median(alone_seconds[contender.name]),
            "processor_seconds": processor[contender.name],
            "seconds_together": together[contender.name] / len(queries),
            "recall": recall(results[contender.name], exact),
            "recall_of_10": recall(results[contender.name], exact[:, :10]),
        }
        for contender in contenders
    ]
    for row in rows:
        print("  ".join(f"{key} {value:,.4g}" if not isinstance(value, str) else value for key, value in row.items()))
    write_report(arguments.json, "late_interaction", vars(arguments), {"rows": rows})


class PyLate:
    """PyLate's index in a process of a separate environment, since it needs other versions of libraries than raydr.

    Args:
        python: the environment's interpreter.
        folder: for vectors and index.
        num_threads: of the process.
    """

    def __init__(self, python: str, folder: Path, num_threads: int) -> None:
        self._folder = folder
        folder.mkdir()
        threads = {name: str(num_threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")}
        self._process = subprocess.Popen(
            [python, "-c", f"{inspect.getsource(serve_pylate)}\nserve_pylate({str(folder)!r}, {num_threads})"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"PATH": "/usr/bin:/bin", **threads},
        )  # fmt: skip

    def ask(self, **request: Any) -> Any:
        """Send a request and return the answer when the work is done."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def build(self, vectors: NDArray[np.float16], lengths: NDArray[np.int64], bits: int) -> None:
        """Index passages by their concatenated vectors and their lengths."""
        np.save(self._folder / "vectors.npy", vectors)
        np.save(self._folder / "lengths.npy", lengths)
        self.ask(bits=bits)

    @property
    def num_bytes(self) -> int:
        """The size of the index."""
        return sum(file.stat().st_size for file in (self._folder / "index").rglob("*") if file.is_file())

    def search(self, probes: int, scores: int, top_k: int, queries: VectorSets) -> NDArray[np.int64]:
        """Return the rows of the top passages, shape (queries, top_k)."""
        vectors = [
            queries.vectors_TD[start:end].tolist()
            for start, end in zip(queries.offsets[:-1], queries.offsets[1:], strict=True)
        ]
        rows = self.ask(queries=vectors, probes=probes, scores=scores, top_k=top_k)
        return np.array([(row + [-1] * top_k)[:top_k] for row in rows])


def serve_pylate(folder: str, num_threads: int) -> None:
    """Answer the requests of standard input; runs in PyLate's environment, which has only this function's source."""
    import json
    import sys

    import numpy as np
    import torch
    from pylate.indexes.fast_plaid import FastPlaid

    torch.set_num_threads(num_threads)
    answers, sys.stdout = sys.stdout, sys.stderr
    index: Any = None
    for line in sys.stdin:
        request, answer = json.loads(line), None
        if index is None:
            vectors, lengths = np.load(f"{folder}/vectors.npy"), np.load(f"{folder}/lengths.npy")
            texts = list(torch.split(torch.from_numpy(vectors), lengths.tolist()))
            index = FastPlaid(f"{folder}/index", "plaid", nbits=request["bits"], show_progress=False, device="cpu")
            index.add_documents([str(at) for at in range(len(texts))], texts)
        else:
            index.n_ivf_probe, index.n_full_scores = request["probes"], request["scores"]
            queries = [torch.tensor(vectors, dtype=torch.float16) for vectors in request["queries"]]
            answer = [[int(hit["id"]) for hit in hits] for hits in index(queries, k=request["top_k"])]
        print(json.dumps(answer), file=answers, flush=True)


def seconds_alone(search: Search, queries: list[VectorSets]) -> float:
    """Return the median seconds of a query, for queries searched one after the other."""
    return statistics.median(timed(partial(search, query)) for query in queries)


def processor_seconds(search: Search, queries: list[VectorSets]) -> float:
    """Return the CPU seconds of a query searched alone, which depend little on other work on the machine."""
    started = time.process_time()
    for query in queries:
        search(query)
    return (time.process_time() - started) / len(queries)


def contend(arguments: argparse.Namespace, scratch: Path, embeddings: Artifact) -> Iterator[Contender]:
    """Yield the indexes to compare, exact search first."""
    for at, name in enumerate((_EXACT, *arguments.indexes)):
        factory, _, vectors = name.partition(":")
        config = IndexConfig(
            factory=factory, vectors=vectors, train_rows=arguments.train_rows, cpus_per_task=arguments.cpus,
            train_cpus=arguments.cpus, shard_rows=10**8,
        )  # fmt: skip
        started = time.perf_counter()
        with begin(str(scratch / f"index-{at}"), Identity(kind="index")) as making:
            assert isinstance(making, Building)
            score = build(ScoreFunction, "sum_of_max")
            index = making.finish(build_index(making, ThisProcess(), embeddings, settings=config, score=score))
        built = time.perf_counter() - started
        num_bytes, shards = sum(part.bytes for part in index.manifest.parts.values()), IndexShards(index)
        for settings in [""] if name.startswith(_EXACT) else arguments.settings:
            names = ("nprobe", "num_nearest", "num_candidates")
            options = dict(zip(names, map(int, filter(None, settings.split("/"))), strict=False))
            searcher = ShardSearcher(shards, range(shards.num_shards), SearchConfig(**options), arguments.cpus)
            search = partial(search_shards, searcher, arguments.top_k)
            yield Contender(f"{name} {settings}".strip(), search, num_bytes, built)
    if arguments.pylate:
        pylate = PyLate(arguments.pylate, scratch / "pylate", arguments.cpus)
        vectors, lengths = every(Embeddings(embeddings))
        built = timed(partial(pylate.build, vectors, lengths, arguments.pylate_bits))
        for settings in arguments.pylate_settings:
            probes, scores = map(int, settings.split("/"))
            theirs = partial(pylate.search, probes, scores, arguments.top_k)
            yield Contender(f"PyLate {arguments.pylate_bits} bits {settings}", theirs, pylate.num_bytes, built)


def search_shards(searcher: ShardSearcher, top_k: int, queries: VectorSets) -> NDArray[np.int64]:
    return searcher.search(queries, top_k).rows


def every(embeddings: Embeddings) -> tuple[NDArray[np.float16], NDArray[np.int64]]:
    """Return the vectors of all texts, and the number of vectors of each text."""
    sets = VectorSets.join([embeddings.sets(part) for part in range(len(embeddings.part_names))])
    return sets.vectors_TD, sets.lengths


def recall(rows: NDArray[np.int64], exact: NDArray[np.int64]) -> float:
    """Return the mean share of the exact top passages that are retrieved."""
    return float(np.mean([np.isin(wanted, got).mean() for wanted, got in zip(exact, rows, strict=True)]))


def read_vectors(arguments: argparse.Namespace, scratch: Path) -> tuple[Artifact, VectorSets]:
    """Return the passage and query vectors of a run."""
    places = Places.of(arguments.workdir)
    passages = Embeddings(places.open(vectors_name(arguments.model), "embeddings"))
    queries = Embeddings(places.open(vectors_name(arguments.model, arguments.split), "embeddings"))
    parts = range(int(np.searchsorted(passages.starts[:-1], arguments.passages)))
    first = VectorSets.join([passages.sets(part) for part in parts]).slice(0, arguments.passages)
    return make_embeddings(scratch / "passages", first, "passage"), queries.sets(0).slice(0, arguments.queries)


if __name__ == "__main__":
    main()
