"""The Python of README prints what README shows, but for the figures."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from api.made_pairs import make_pairs

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.e2e
def test_the_snippet_of_the_readme_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    section = README.read_text(encoding="utf-8").partition("## From Python")[2]
    code, shown = re.findall(r"```(?:python)?\n(.*?)```", section, re.DOTALL)[:2]
    monkeypatch.chdir(tmp_path)
    with open("pairs.csv", "w", newline="") as file:
        csv.writer(file).writerows([("query", "passage"), *make_pairs(80)])
    exec(compile(code, str(README), "exec"), {})
    printed = capsys.readouterr().out
    assert [*map(_words, printed.splitlines()[:2])] == [*map(_words, shown.splitlines()[:2])]
    for line in ("query passage p_wrong", "system mean low high"):
        assert line in _spaced(printed)
        assert line in _spaced(shown)
    assert [line.split()[0] for line in printed.splitlines()[-3:]] == ["bm25", "untrained", "trained"]
    assert (tmp_path / "my-model" / "modules.json").exists()


def _words(line: str) -> str:
    """A line without its figures."""
    return re.sub(r"[\d,.]+", "#", line)


def _spaced(text: str) -> str:
    return re.sub(r" +", " ", text)
