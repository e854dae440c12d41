"""Benchmarks and tests on a single GPU, in under eight minutes: ``make gpu``.

Needs Python, torch, transformers, pydantic, pyarrow and ir_measures; some parts also need pytest, faiss or Ray. It
needs no network and no data: models have random weights, texts and tokens are synthetic. It writes ``gpu.json`` after
each figure. Parts: encoding from strings to written vectors; training steps; encoding with Ray, and of tokens; tests
marked gpu; losses in half and in single precision; other training steps; exact search. Exit status 1 if a part failed;
failures are listed at the end.

    python -m benchmarks.gpu --output gpu-figures
    python -m benchmarks.gpu --dry --output /tmp/dry        # the same on a processor, in small
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.gpu import encoding, search, through_ray, training
from benchmarks.gpu.record import FIGURES, GRACE_S, MOST_S, Record
from raydr.models.precision import resolve_dtype

ROOT = Path(__file__).parents[2]
#: Folders of tests, and the package that each needs.
TESTS = {
    "tests/models": "transformers",
    "tests/training": "transformers",
    "tests/indexing": "faiss",
    "tests/e2e": "ray",
}
#: Parts in the order of importance, since a GPU may be available for minutes only.
PARTS = ("strings", "training", "ray", "encoding", "tests", "precision", "others", "search")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="gpu-figures", help="folder of the figures")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--seconds", type=float, default=420, help="time after which no further figure is begun")
    parser.add_argument("--dry", action="store_true", help="run small sizes on the CPU")
    arguments = parser.parse_args()
    if not arguments.dry and not torch.cuda.is_available():
        print("there is no CUDA device: --dry runs small sizes on the CPU", file=sys.stderr)
        return 2
    # No warnings about checkpoints without a pooler.
    transformers.logging.set_verbosity_error()
    device = "cpu" if arguments.dry else "cuda"
    record = Record(Path(arguments.output), device, arguments.dry, arguments.seconds)
    dtype, reason = resolve_dtype("auto", device)
    print(f"{device}, {dtype} ({reason})", flush=True)
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        folder = Path(name)
        parts: dict[str, Callable[[], None]] = {
            "strings": lambda: encoding.from_strings(record, folder / "strings", dtype),
            "training": lambda: training.measure(record, folder, dtype),
            "ray": lambda: through_ray.measure(record),
            "encoding": lambda: encoding.measure(record, folder, dtype),
            "tests": lambda: record.row("tests", "marked gpu", lambda: run_tests(record), wanted_s=60),
            "precision": lambda: training.compare_precision(record, folder),
            "others": lambda: training.measure_others(record, folder, dtype),
            "search": lambda: search.measure(record),
        }
        for part in [part for part in parts if part in arguments.parts]:
            record.part(part, parts[part])
    record.write()
    for name, text in record.failures.items():
        print(f"\n{name} failed:\n{text}", file=sys.stderr)
    print(record.folder / FIGURES)
    return 1 if record.failures else 0


def run_tests(record: Record) -> dict[str, Any]:
    """Run the tests that are marked gpu in separate processes; only list them in a dry run."""
    if find_spec("pytest") is None:
        return {"outcome": "pytest is not installed"}
    folders = [folder for folder, needed in TESTS.items() if find_spec(needed) is not None]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "--no-header", *folders]
    if find_spec("xdist") is not None:
        command += ["--numprocesses", "4"]
    done = subprocess.run(
        [*command, *(["--collect-only"] if record.dry else [])],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["tests", *sys.path])},
        capture_output=True,
        text=True,
        timeout=min(MOST_S, record.left_s + GRACE_S),
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    summary = lines[-1].strip("= ") if lines else ""
    if done.returncode:
        raise RuntimeError(f"{summary}\n{done.stdout[-6000:]}{done.stderr[-2000:]}")
    return {"outcome": summary, "folders": len(folders)}


if __name__ == "__main__":
    sys.exit(main())
