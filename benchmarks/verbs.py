"""Seconds of each verb on tiny data with the start of the process: in one process, on Ray, and in other checkouts.

    python -m benchmarks.verbs --others ../raydr-before

The data are 120 pairs of a docstring and its function, from networkx; the encoder has a single layer. Each column has
its own working folder, in which the verbs run in order.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.timing import write_report

#: Arguments of each verb, by its name in the table.
VERBS = {
    "--help": ["--help"],
    "prepare": ["prepare", "CONFIG"],
    "mine": ["mine", "CONFIG"],
    "train": ["train", "CONFIG"],
    "encode": ["encode", "CONFIG"],
    "index": ["index", "CONFIG"],
    "search --split test": ["search", "CONFIG", "--split", "test"],
    "search TEXT": ["search", "CONFIG", "shortest path between two nodes"],
    "judge --judge margin": ["judge", "CONFIG", "--judge", "margin"],
    "evaluate": ["evaluate", "CONFIG", "--system", "trained"],
    "evaluate, everything there": ["evaluate", "CONFIG", "--system", "trained"],
}
HERE, ON_RAY = "in the process", "on Ray"


def main() -> None:
    """Time the verbs, column by column, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--others", nargs="*", default=[], help="folders of other checkouts of raydr")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", default="", help="write the figures to this file")
    arguments = parser.parse_args()
    columns = {HERE: (Path.cwd(), []), ON_RAY: (Path.cwd(), ["--set", "ray.in_process_rows=0"])}
    columns |= {Path(other).name: (Path(other).resolve(), []) for other in arguments.others}
    seconds: dict[str, dict[str, list[float]]] = {verb: {column: [] for column in columns} for verb in VERBS}
    for _ in range(arguments.repeats):
        for column, (checkout, overrides) in columns.items():
            for verb, taken in run_verbs(checkout, overrides).items():
                seconds[verb][column].append(taken)
    print(f"seconds, medians of {arguments.repeats}")
    print(f"{'verb':28}" + "".join(f"{column:>18}" for column in columns))
    for verb, by_column in seconds.items():
        print(f"{verb:28}" + "".join(f"{statistics.median(taken):18.1f}" for taken in by_column.values()))
    write_report(arguments.json, "verbs", vars(arguments), seconds)


def run_verbs(checkout: Path, overrides: list[str]) -> dict[str, float]:
    """Run the verbs in a new working folder; return the seconds of each."""
    with tempfile.TemporaryDirectory() as place:
        config = Path(place, "tiny.yaml")
        config.write_text(yaml.safe_dump(tiny_run(f"{place}/w")), encoding="utf-8")
        taken = {}
        for verb, command in VERBS.items():
            words = [str(config) if word == "CONFIG" else word for word in command]
            words += overrides if "CONFIG" in command else []
            started = time.perf_counter()
            ended = subprocess.run(
                [sys.executable, "-m", "raydr", *words],
                cwd=checkout,
                env=os.environ | {"PYTHONPATH": str(checkout)},
                capture_output=True,
                text=True,
                check=False,
            )
            taken[verb] = time.perf_counter() - started
            if ended.returncode:
                sys.exit(f"raydr {verb} in {checkout} ended with {ended.returncode}:\n{ended.stderr}")
        return taken


def tiny_run(workdir: str) -> dict[str, Any]:
    """Return the config as a nested dict."""
    return {
        "workdir": workdir,
        "data": {
            "reader": {"name": "code_search", "packages": ["networkx"], "num_pairs": 120, "dev": 0.1, "test": 0.2}
        },
        "negatives": {"miner": "bm25", "depth": 10},
        "model": {
            "checkpoint": "offline:minilm",
            "num_layers": 1,
            "query": {"max_length": 32},
            "passage": {"max_length": 64},
        },
        "train": {"num_epochs": 1, "batch_size": 16, "num_hard_negatives": 1, "dtype": "float32"},
        "encode": {"dtype": "float32"},
        "evaluate": {"measures": ["RR@10"], "answer_cutoffs": []},
        "ray": {"num_cpus": 2, "object_store_gib": 0.3},
    }


if __name__ == "__main__":
    main()
