"""Shared by the benchmarks: interleaved repeats, medians, and a record of the machine."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

#: Distributions whose versions matter to the figures.
_DISTRIBUTIONS = ("raydr", "ray", "torch", "transformers", "numpy", "pyarrow")


def timed(work: Callable[[], object]) -> float:
    """Seconds that ``work`` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def interleave(measures: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Measure all candidates in turn, ``repeats`` times, so that a slow phase of the machine hits all of them.

    Args:
        measures: By candidate, a function that returns one figure (seconds, or items a second).
    """
    figures: dict[str, list[float]] = {name: [] for name in measures}
    for repeat in range(repeats):
        # Every other round in reverse, so that no candidate always comes first.
        names = list(measures)
        for name in names if repeat % 2 == 0 else reversed(names):
            figures[name].append(measures[name]())
    return figures


def steady_rate(folder: Path, pattern: str, items: Callable[[Path], int], skip: int = 1) -> float:
    """Items a second of a stage that writes files one after the other, without its start-up.

    The clock starts when the first ``skip`` files are there (by their times) and stops with the last.

    Args:
        items: How many items a file has.
    """
    files = sorted(folder.glob(pattern), key=lambda file: file.stat().st_mtime_ns)
    nanoseconds: int = files[-1].stat().st_mtime_ns - files[skip - 1].stat().st_mtime_ns
    return sum(items(file) for file in files[skip:]) / (nanoseconds / 1e9)


def ratios(figures: Mapping[str, list[float]], of: str, to: str) -> float:
    """Median over the rounds of one candidate's figure divided by another's of the same round."""
    return statistics.median(value / base for value, base in zip(figures[of], figures[to], strict=True))


def machine() -> dict[str, Any]:
    """Processor, CPUs, GPU, load and versions of what is installed: the core is measured without Ray as well."""
    cpuinfo = Path("/proc/cpuinfo")
    models = [line.split(":", 1)[1].strip() for line in _lines(cpuinfo) if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.processor(),
        "num_cpus": os.cpu_count(),
        "gpu": _gpu(),
        "load_average": list(os.getloadavg()),
        "python": platform.python_version(),
        "versions": {name: installed for name in _DISTRIBUTIONS if (installed := _version(name))},
    }


def _gpu() -> str | None:
    """The GPU of a benchmark that uses PyTorch; the others do not load it for this."""
    torch = sys.modules.get("torch")
    return str(torch.cuda.get_device_name()) if torch is not None and torch.cuda.is_available() else None


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def write_report(path: str, name: str, settings: Mapping[str, Any], figures: Mapping[str, Any]) -> None:
    """Write one JSON file with the figures, what was run and where; nothing if ``path`` is empty."""
    if path:
        report = {"benchmark": name, "settings": dict(settings), "figures": dict(figures), "machine": machine()}
        Path(path).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(f"written to {path}")


def print_rates(figures: Mapping[str, list[float]], unit: str, base: str) -> None:
    """A line a candidate: its median rate, the range, and the median ratio to ``base``."""
    print(f"{'':28} {'median ' + unit + '/s':>18} {'from':>12} {'to':>12} {'× ' + base:>24}")
    for name, rates in figures.items():
        ratio = ratios(figures, name, base)
        print(f"{name:28} {statistics.median(rates):18,.1f} {min(rates):12,.1f} {max(rates):12,.1f} {ratio:24.3f}")
