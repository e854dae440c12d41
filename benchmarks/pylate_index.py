"""PyLate's index in an environment of its own, asked through files and pipes: it wants other libraries than raydr.

python -m benchmarks.late_interaction --pylate ../pylate/bin/python    # starts this file by itself, in that one
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from raydr.data.vector_sets import VectorSets


class PyLate:
    """A process of the other environment that holds an index.

    Args:
        python: the environment's interpreter.
        folder: where vectors and the index are written.
        num_threads: of the process.
    """

    def __init__(self, python: str, folder: Path, num_threads: int) -> None:
        self._folder = folder
        folder.mkdir()
        threads = {name: str(num_threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")}
        self._process = subprocess.Popen(
            [python, __file__, str(folder), str(num_threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"PATH": "/usr/bin:/bin", **threads},
        )  # fmt: skip

    def ask(self, **request: Any) -> Any:
        """Answered when it is done."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def build(self, vectors: NDArray[np.float16], lengths: NDArray[np.int64], bits: int) -> None:
        """Index passages, whose vectors follow one another."""
        np.save(self._folder / "vectors.npy", vectors)
        np.save(self._folder / "lengths.npy", lengths)
        self.ask(bits=bits)

    @property
    def num_bytes(self) -> int:
        """Of the index."""
        return sum(file.stat().st_size for file in (self._folder / "index").rglob("*") if file.is_file())

    def searched(self, probes: int, scores: int, top_k: int) -> PyLateSearch:
        """The index with some settings."""
        return PyLateSearch(self, probes, scores, top_k)


@dataclass(frozen=True)
class PyLateSearch:
    pylate: PyLate
    probes: int
    scores: int
    top_k: int

    def search(self, queries: VectorSets) -> NDArray[np.int64]:
        """Rows of the best passages, (queries, top_k)."""
        vectors = [
            queries.vectors_TD[start:end].tolist()
            for start, end in zip(queries.offsets[:-1], queries.offsets[1:], strict=True)
        ]
        rows = self.pylate.ask(queries=vectors, probes=self.probes, scores=self.scores, top_k=self.top_k)
        return np.array([(one + [-1] * self.top_k)[: self.top_k] for one in rows])


def serve(folder: Path, num_threads: int) -> None:
    """In PyLate's environment: answer the requests of standard input."""
    import torch
    from pylate.indexes.fast_plaid import FastPlaid

    torch.set_num_threads(num_threads)
    answers, sys.stdout = sys.stdout, sys.stderr
    index: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        if index is None:
            vectors, lengths = np.load(folder / "vectors.npy"), np.load(folder / "lengths.npy")
            texts = list(torch.split(torch.from_numpy(vectors), lengths.tolist()))
            index = FastPlaid(str(folder / "index"), "plaid", nbits=request["bits"], show_progress=False, device="cpu")
            index.add_documents([str(at) for at in range(len(texts))], texts)
            answer = None
        else:
            index.n_ivf_probe, index.n_full_scores = request["probes"], request["scores"]
            queries = [torch.tensor(one, dtype=torch.float16) for one in request["queries"]]
            found = index(queries, k=request["top_k"])
            answer = [[int(hit["id"]) for hit in hits] for hits in found]
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
