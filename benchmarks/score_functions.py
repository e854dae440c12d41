"""Every score function from the command line on 1 and 2 workers, killed and gone on with: a pair has one score.

    python -m experiments.beir_part ../shared/data/openqa-wiki work/data/openqa-small --prefixes nq --passages 1500
    python -m benchmarks.score_functions work/data/openqa-small

For each score function a model is trained by one process, and by two workers of Ray, on which all the rest is done
too. Each verb is killed (SIGKILL, with all of its Ray) and run again: training once it has kept a state, encoding
once a part is there, the judge ``margin`` once it has begun, the evaluation first when there is an index, then when a
part of the run is there. Compared are, as the largest differences: the scores in the run and the verdicts' with those
of all pairs by the saved model, runs of 1 and 2 workers with each other, and the weights with those of a training
that nobody killed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml
from numpy.typing import NDArray
from safetensors.numpy import load_file

from benchmarks.timing import write_report
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.graph.places import Places
from raydr.models.pair_scoring import DualEncoderScorer
from raydr.noise.judges.margin import Margin
from raydr.stages.runs import Run
from raydr.stages.worker_group import CHECKPOINT_LIST
from raydr.store.artifact import DONE, MANIFEST
from raydr.training.checkpoint import PROGRESS

SCORES: dict[str, dict[str, Any]] = {
    "dual": {},
    "multi": {"num_vectors": 4},
    "poly": {"num_vectors": 4, "sharpness": 10},
    "genpoly": {"num_vectors": 4, "num_passage_vectors": 4, "sharpness": 10},
    "sum_of_max": {},
}
SPLIT, JUDGE = "test", "margin"
#: Of a split, whose scores with all passages are computed anew.
QUERIES = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a BEIR folder with train, dev and test")
    parser.add_argument("--scores", nargs="+", default=list(SCORES))
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="scores-", ignore_cleanup_errors=True) as scratch:
        for score in arguments.scores:
            found = [Commands(Path(scratch), arguments.data, score, workers) for workers in arguments.workers]
            for one in found:
                rows.append(one.run())
                print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
            if len(found) > 1:
                rows.append({"score": score, "runs of 1 and 2 workers": differences(*(one.found for one in found))})
                print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    write_report(arguments.json, "score_functions", vars(arguments), {"rows": rows})


class Commands:
    """One score function on some workers.

    Args:
        scratch: where working folders lie.
        data: the BEIR folder.
        score: its name.
        workers: 1, in a process without Ray, or more.
    """

    def __init__(self, scratch: Path, data: str, score: str, workers: int) -> None:
        self.score, self.workers = score, workers
        self.config = scratch / f"{score}-{workers}.yaml"
        self.workdir = scratch / f"{score}-{workers}"
        self.ray = tempfile.mkdtemp(prefix="r16-")
        self.config.write_text(yaml.safe_dump(self.settings(data)), encoding="utf-8")
        self.found: dict[tuple[str, str], float] = {}

    def settings(self, data: str) -> dict[str, Any]:
        return {
            "workdir": str(self.workdir),
            "data": {
                "reader": {"name": "beir", "path": data}, "part_rows": 200,
                "max_queries": {"train": 192, "dev": 40, "test": 60},
            },
            "negatives": {"miner": "bm25", "depth": 8},
            "model": {
                "checkpoint": "offline:minilm", "num_layers": 3, "dropout": 0,
                "score": {"name": self.score, **SCORES[self.score]},
                "scale": 1 if self.score == "sum_of_max" else 20,
                "query": {"max_length": 16}, "passage": {"max_length": 32},
            },
            # The upper one of three layers learns.
            "train": {
                "num_epochs": 2, "batch_size": 32, "num_hard_negatives": 1, "dtype": "float32", "checkpoint_steps": 2,
                "num_workers": self.workers, "optimizer": {"learning_rate": 1e-4, "frozen_layers": 2},
                "dev": {"random_passages": 200},
            },
            "encode": {"dtype": "float32", "max_actors": self.workers, "cpus_per_actor": 0.5},
            "judge": {"model": "trained"},
            "search": {"batch_queries": 20},
            "evaluate": {"measures": ["R@1", "RR@10"]},
            "ray": {
                "num_cpus": 2, "temp_dir": self.ray, "in_process_rows": 10**8 if self.workers == 1 else 0,
                "object_store_gib": 0.3,
            },
        }  # fmt: skip

    def run(self) -> dict[str, Any]:
        """All verbs; what was found."""
        kept = self.killed(self.has_state, "train")
        self.end("train")
        found: dict[str, Any] = {"score": self.score, "workers": self.workers, "state at step": kept}
        found["weights, unhurt"] = self.beside_unhurt()
        self.killed_at_a_part("embeddings", "encode")
        judge = "judge", "--judge", JUDGE
        self.killed(lambda: self.begun("verdicts"), *judge)
        self.end(*judge)
        evaluate = "evaluate", "--system", "trained"
        self.killed(lambda: self.begun("index"), *evaluate)
        self.killed_at_a_part("run", *evaluate)
        shutil.rmtree(self.ray, ignore_errors=True)
        return found | self.beside_all_pairs()

    # -- commands

    def start(self, *words: str) -> subprocess.Popen[str]:
        verb, *options = words
        command = [sys.executable, "-m", "raydr", verb, str(self.config), *options]
        log = self.config.with_suffix(".log").open("a", encoding="utf-8")
        return subprocess.Popen(command, stdout=log, stderr=log, text=True, env=os.environ)

    def end(self, *words: str) -> None:
        """Run a command to its end."""
        status = self.start(*words).wait()
        if status:
            raise SystemExit(f"{' '.join(words)} ended with {status}:\n{self.log()[-3000:]}")

    def killed_at_a_part(self, kind: str, *words: str) -> None:
        """Kill a command once a part of an artefact is there, and run it to its end, which keeps that part."""
        first = self.killed(lambda: self.first_part(kind), *words)
        before = Path(first).stat().st_mtime_ns
        self.end(*words)
        assert Path(first).stat().st_mtime_ns == before, f"{first} was made again"

    def killed(self, reached: Callable[[], str], *words: str) -> str:
        """Kill a command with all of its Ray once it has come so far; what it had reached."""
        process = self.start(*words)
        while not (far := reached()):
            if process.poll() is not None:
                raise SystemExit(f"{words[0]} ended with {process.poll()} before it was killed:\n{self.log()[-3000:]}")
            time.sleep(0.005)
        family = [psutil.Process(process.pid), *self.of_ray()]
        for one in family:
            one.suspend()
        for one in family:
            one.send_signal(signal.SIGKILL)
        process.wait()
        for one in self.of_ray():
            one.kill()
        return far

    def of_ray(self) -> list[psutil.Process]:
        """The processes that name the folder of this run's Ray, and their children."""
        found = []
        for one in psutil.process_iter():
            try:
                if any(self.ray in " ".join(member.cmdline()) for member in (one, *one.parents())):
                    found.append(one)
            except psutil.Error:
                continue
        return [one for one in found if one.pid != os.getpid()]

    def log(self) -> str:
        return self.config.with_suffix(".log").read_text(encoding="utf-8")

    # -- how far a command is

    def has_state(self) -> str:
        """The step of a state that training goes on from."""
        try:
            for place in (self.workdir / "store" / "model").rglob(PROGRESS):
                progress = yaml.safe_load(place.read_text(encoding="utf-8"))
                if place.parent.name.startswith("step-") or (place.parents[1] / CHECKPOINT_LIST).exists():
                    return str(progress["global_step"])
        except FileNotFoundError:
            # An older state has been removed meanwhile.
            return ""
        return ""

    def first_part(self, kind: str) -> str:
        """A part of an artefact that a resume will not make again: one that is recorded."""
        for record in sorted((self.workdir / "store" / kind).glob(f"*/{DONE}/part-*.json")):
            if not (record.parents[1] / MANIFEST).exists():
                return str(record.parents[1] / record.stem)
        return ""

    def begun(self, kind: str) -> str:
        """The folder of an artefact, complete or not."""
        return next(map(str, sorted((self.workdir / "store" / kind).glob("*"))), "")

    # -- comparisons

    def beside_unhurt(self) -> float:
        """The largest difference of a weight from those of a training that was not killed."""
        trained = self.weights()
        whole = self.workdir.with_name(f"{self.workdir.name}-whole")
        self.end("train", "--set", f"workdir={whole}")
        other = self.weights(whole)
        return max(float(np.abs(trained[name] - other[name]).max()) for name in trained)

    def weights(self, workdir: Path | None = None) -> dict[str, NDArray[Any]]:
        folder = Places.of(str(workdir or self.workdir)).open("models/trained", "model").folder
        files = sorted(name for name in folder.files() if name.endswith(".safetensors"))
        return {f"{file} {key}": value for file in files for key, value in load_file(folder.path(file)).items()}

    def beside_all_pairs(self) -> dict[str, Any]:
        """The run and the verdicts beside the saved model's scores of all queries with all passages."""
        places = Places.of(str(self.workdir))
        corpus, data = Corpus(places.open("corpus", "corpus")), Dataset(places.open("dataset", "dataset"))
        scorer = DualEncoderScorer(places.open("models/trained", "model").folder.path(""), "float32", "cpu", 4096)
        run = [row for part in Run(places.open(f"runs/{SPLIT}/trained", "run")).parts() for row in part.to_pylist()]
        self.found = {(row["query_id"], row["passage_id"]): row["score"] for row in run}
        exact = all_pairs(scorer, corpus, data, SPLIT)
        best = {(query, passage) for query, by in exact.items() for passage in sorted(by, key=by.__getitem__)[-100:]}
        verdicts = places.open(f"verdicts/{JUDGE}-bm25-train", "verdicts")
        said = [row for name in verdicts.parts() for row in read(verdicts.folder.path(name))]
        judged = all_pairs(scorer, corpus, data, "train")
        qrels = data.qrels("train").to_pylist()
        off, limits = [], Margin().limits
        for row in said:
            if (by := judged.get(row["query_id"])) is None:
                continue
            positives = [by[one["passage_id"]] for one in qrels if one["query_id"] == row["query_id"]]
            off.append(abs(row["score"] - (by[row["passage_id"]] - float(limits(np.array([max(positives)]))[0]))))
        return {
            "run": max(abs(score - exact[query][passage]) for (query, passage), score in self.found.items()),
            "best 100 found": len(best & self.found.keys()) / len(best),
            "verdicts": max(off),
        }


def read(file: str) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    return pq.read_table(file).to_pylist() if file.endswith(".parquet") else []


def all_pairs(scorer: DualEncoderScorer, corpus: Corpus, data: Dataset, split: str) -> dict[str, dict[str, float]]:
    """Scores of the first queries of a split with every passage, by query and passage."""
    queries = data.queries(split).slice(0, QUERIES).to_pylist()
    rows = np.arange(len(corpus))
    query_P, passage_P = np.repeat(np.arange(len(queries)), len(rows)), np.tile(rows, len(queries))
    scores = scorer.score([one["text"] for one in queries], corpus.texts(rows), query_P, passage_P)
    ids = corpus.ids(rows)
    by_query = scores.reshape(len(queries), len(rows)).tolist()
    return {one["query_id"]: dict(zip(ids, found, strict=True)) for one, found in zip(queries, by_query, strict=True)}


def differences(one: dict[tuple[str, str], float], other: dict[tuple[str, str], float]) -> str:
    """Of two runs: the largest difference of a score, and the share of pairs that both have."""
    both = one.keys() & other.keys()
    return f"{max(abs(one[pair] - other[pair]) for pair in both):.2g}, {len(both) / len(one):.4f} of the pairs in both"


if __name__ == "__main__":
    main()
