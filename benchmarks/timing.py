"""Interleaved repeats, medians and a record of the machine, for all benchmarks."""

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

#: Packages whose versions matter to the figures.
_DISTRIBUTIONS = ("raydr", "ray", "torch", "transformers", "numpy", "pyarrow")


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that ``work`` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def interleave(measures: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Measure all candidates in turn, ``repeats`` times, so that a slow phase of the machine affects all of them.

    Args:
        measures: by candidate, a function that returns a figure (seconds, or items per second).
        repeats: number of rounds.
    """
    figures: dict[str, list[float]] = {name: [] for name in measures}
    for repeat in range(repeats):
        # Every second round is in reverse order, so that no candidate is always first.
        names = list(measures)
        for name in names if repeat % 2 == 0 else reversed(names):
            figures[name].append(measures[name]())
    return figures


def steady_rate(folder: Path, pattern: str, items: Callable[[Path], int], skip: int = 1) -> float:
    """Return the items per second of a stage that writes files one after the other, without its start-up.

    Args:
        folder: of the files.
        pattern: of their names.
        items: returns the number of items in a file.
        skip: number of files after which timing starts.
    """
    files = sorted(folder.glob(pattern), key=lambda file: file.stat().st_mtime_ns)
    nanoseconds: int = files[-1].stat().st_mtime_ns - files[skip - 1].stat().st_mtime_ns
    return sum(items(file) for file in files[skip:]) / (nanoseconds / 1e9)


def ratios(figures: Mapping[str, list[float]], of: str, to: str) -> float:
    """Return the median over rounds of a candidate's figure divided by another's of the same round."""
    return statistics.median(value / base for value, base in zip(figures[of], figures[to], strict=True))


def machine() -> dict[str, Any]:
    """Return processor, CPUs, GPU, load and versions of installed packages."""
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
    """Return the GPU's name if the benchmark has loaded PyTorch; do not load it for this."""
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
    """Write a JSON file with figures, settings and machine; do nothing if ``path`` is empty."""
    if path:
        report = {"benchmark": name, "settings": dict(settings), "figures": dict(figures), "machine": machine()}
        Path(path).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(f"written to {path}")


def print_rates(figures: Mapping[str, list[float]], unit: str, base: str) -> None:
    """Print a line for each candidate: median rate, range, and median ratio to ``base``."""
    print(f"{'':28} {'median ' + unit + '/s':>18} {'from':>12} {'to':>12} {'× ' + base:>24}")
    for name, rates in figures.items():
        ratio = ratios(figures, name, base)
        print(f"{name:28} {statistics.median(rates):18,.1f} {min(rates):12,.1f} {max(rates):12,.1f} {ratio:24.3f}")
