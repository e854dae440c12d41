from __future__ import annotations

import pytest

from raydr.indexing.searcher import Hit
from raydr.verbs.text_search import show_hits

WORDS = " ".join(f"word{at}" for at in range(40))


def test_hits_go_to_standard_output_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """At the width of a small terminal, without what the text would do to it."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    show_hits("a question", [Hit(1, "p1", "Title", f"before\x1b[2J\x07after {WORDS}", 0.5)])
    shown, _ = capsys.readouterr()
    assert WORDS in " ".join(shown.split())
    assert "before\N{REPLACEMENT CHARACTER}[2J" in shown
