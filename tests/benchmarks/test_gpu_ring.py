"""The GPU ring in its dry form: every row is measured on the processor, and what goes wrong does not end the others."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as ring
from benchmarks.gpu import search
from benchmarks.gpu.record import FIGURES, Record


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, *options: str) -> tuple[int, dict[str, dict[str, dict]]]:
    """Exit status, and the figures by part and row."""
    monkeypatch.setattr(sys, "argv", ["gpu", "--dry", "--seconds", "100000", "--output", str(folder), *options])
    status = ring.main()
    report = json.loads((folder / FIGURES).read_text())
    return status, {part: {row["what"]: row for row in rows} for part, rows in report["parts"].items()}


def test_everything_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status, parts = run(
        monkeypatch, tmp_path, "--parts", "strings", "encoding", "precision", "others", "search", "training"
    )
    assert status == 0
    assert not [row for rows in parts.values() for row in rows.values() if "outcome" in row]
    encoding = parts["encoding"]
    assert {f"raydr, {length} tokens" for length in (50, 150, 512)} < set(encoding)
    assert all(row["share of it"] > 0 for row in encoding.values())
    assert {"nce, batch 8", "npc, with its teacher, batch 8", "nce, cached, batch 12"} < set(parts["training"])
    assert {"rcl, batch 8", "nce, cached, in tiles, batch 12"} < set(parts["training"])
    strings = parts["strings to vectors"]
    assert all(strings[f"raydr, parts of {rows}"]["texts/s"] > 0 for rows in (10, 20))
    # The same steps from the same weights: only rounding lies between.
    (compared,) = parts["losses of the same steps"].values()
    assert compared["first"] > 1
    assert compared["most apart"] < 0.05
    assert parts["exact search"]["32 queries, top 100"]["queries/s"] > 0


def test_a_part_that_fails_is_told_and_ends_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(search, "measure", lambda record: record.row("exact search", "all", lambda: 1 / 0))
    monkeypatch.setattr(ring, "run_tests", lambda record: {"outcome": "3 passed"})
    status, parts = run(monkeypatch, tmp_path, "--parts", "tests", "search")
    assert status == 1
    assert parts["tests"]["marked gpu"]["outcome"] == "3 passed"
    assert "ZeroDivisionError" in parts["exact search"]["all"]["outcome"]
    assert "ZeroDivisionError" in json.loads((tmp_path / FIGURES).read_text())["failures"]["exact search: all"]


def test_what_the_time_does_not_suffice_for_is_said(tmp_path: Path) -> None:
    record = Record(tmp_path, "cpu", dry=True, seconds=10_000)
    record.row("a", "short", lambda: {"x": 1}, wanted_s=1)
    record.row("a", "long", lambda: {"x": 1}, wanted_s=10_001)
    assert [row["what"] for row in record.parts["a"]] == ["short"]
    assert record.left_out == ["a: long"]
