"""``raydr audit`` and ``raydr report`` hand over what was asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import raydr
from raydr.verbs import app


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "run.yaml"
    path.write_text("name: mine\ndata: {reader: {name: beir, path: here}}\n")
    return str(path)


def test_judges_are_separated_by_commas(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(raydr, "audit", lambda run, **options: asked.update(options, name=run.name), raising=False)
    options = ["--judges", "npc, margin,", "--model", "best", "--split", "dev"]
    result = CliRunner().invoke(app, ["audit", config, *options])
    assert result.exit_code == 0, result.output
    assert asked == {"name": "mine", "judges": ["npc", "margin"], "model": "best", "split": "dev", "overwrite": False}


def test_report_takes_overrides(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(raydr, "report", lambda run: asked.append(run.name), raising=False)
    result = CliRunner().invoke(app, ["report", config, "--set", "name=other"])
    assert result.exit_code == 0, result.output
    assert asked == ["other"]
