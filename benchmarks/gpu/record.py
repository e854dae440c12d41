"""The record of figures and failures, written after each figure so that an interruption loses none."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.shapes import SHAPES, Shape
from benchmarks.timing import machine

#: The file with all figures.
FIGURES = "gpu.json"

#: Time limit of a process that makes a figure, in seconds, and its extension beyond the record's end.
MOST_S, GRACE_S = 240.0, 50.0


#: A minimal encoder, for dry runs.
TINY = Shape(layers=1, width=16, heads=2, inner=24)


@dataclass
class Record:
    """The figures so far.

    Args:
        folder: of the file with the figures.
        device: ``cuda``, or ``cpu`` in a dry run.
        dry: whether sizes are small, as in a test.
        seconds: time after which no further figure is begun.
    """

    folder: Path
    device: str
    dry: bool
    seconds: float
    started: float = field(default_factory=time.monotonic)
    parts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def size(self, real: int, dry: int) -> int:
        """Return a size: the real size, or the size of a dry run."""
        return dry if self.dry else real

    @property
    def shape(self) -> Shape:
        """The shape of the encoder."""
        return TINY if self.dry else SHAPES["bert-base"]

    @property
    def left_s(self) -> float:
        """Remaining seconds in which a figure may be begun."""
        return self.seconds - (time.monotonic() - self.started)

    def row(self, part: str, name: str, measure: Callable[[], dict[str, Any]], wanted_s: float = 0.0) -> None:
        """Measure a row of a part's table and record it, with its seconds and the GPU's peak memory.

        A failure is recorded with its traceback and decides the exit status; the next rows still run.

        Args:
            part: name of the table.
            name: of the row.
            measure: returns the figures by column.
            wanted_s: approximate duration; the row is left out if less time remains.
        """
        if self.left_s < max(wanted_s, 1):
            self.left_out.append(f"{part}: {name}")
            return
        begun = time.monotonic()
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            figures = measure()
        except torch.OutOfMemoryError as error:
            figures = {"outcome": f"out of memory: {str(error).splitlines()[0][:90]}"}
        # After any error the next rows still run, and the command fails at its end.
        except Exception as error:
            self.failures[f"{part}: {name}"] = traceback.format_exc()
            figures = {"outcome": f"{type(error).__name__}: {error}"[:120]}
        if self.device == "cuda":
            figures["peak GiB"] = torch.cuda.max_memory_allocated() / 2**30
        figures["took s"] = time.monotonic() - begun
        self.parts.setdefault(part, []).append({"what": name, **figures})
        print(f"{part}: {name}: " + ", ".join(f"{key} {_shown(value)}" for key, value in figures.items()), flush=True)
        self.write()

    def part(self, name: str, measure: Callable[[], None]) -> None:
        """Measure the rows of a part; record an error, so that the next part can follow."""
        try:
            measure()
        # As for rows.
        except Exception:
            self.failures[name] = traceback.format_exc()
            self.write()

    def write(self) -> None:
        """Write all figures."""
        content = {
            "benchmark": "gpu",
            "dry": self.dry,
            "seconds": time.monotonic() - self.started,
            "parts": self.parts,
            "failures": self.failures,
            "left_out": self.left_out,
            "machine": machine(),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / FIGURES).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
