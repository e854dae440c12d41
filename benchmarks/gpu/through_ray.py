"""Encoding with Ray Data, from texts to written vectors: ``benchmarks.encode_ray`` on the GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu.record import GRACE_S, MOST_S, Record

_ROOT = Path(__file__).parents[2]
#: Mean number of words of a passage, each a single token: as many as 100 words of Wikipedia have tokens.
WORDS = 137


def measure(record: Record) -> None:
    """Measure passages per second; on CPUs in a dry run."""
    if find_spec("ray") is None:
        record.left_out.append("through Ray: it is not installed")
        return
    num = record.size(400_000, 80)
    row = partial(_rates, record, num, record.size(2_500, 10))
    record.row("through Ray", f"{num:,} passages of {WORDS} tokens", row, wanted_s=60)


def _rates(record: Record, num: int, part_rows: int) -> dict[str, Any]:
    on_card = record.device == "cuda"
    card = ["--gpus", "1", "--shape", "bert-base"] if on_card else ["--shape", "minilm"]
    cpus = os.cpu_count() if on_card else 2
    sizes = ["--passages", str(num), "--part-rows", str(part_rows), "--words", str(WORDS), "--repeats", "1"]
    with tempfile.TemporaryDirectory(prefix="gpu-ray-") as folder:
        report = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "benchmarks.encode_ray", "--cpus", str(cpus), "--json", str(report)]
        done = subprocess.run(
            [*command, *card, *sizes, "--without-loop"], cwd=_ROOT, capture_output=True, text=True, check=False,
            timeout=min(MOST_S, record.left_s + GRACE_S),
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(done.stdout[-3000:] + done.stderr[-3000:])
        medians = json.loads(report.read_text(encoding="utf-8"))["figures"]["medians"]
    return {f"{name}, passages/s": rate for name, rate in medians.items()}
