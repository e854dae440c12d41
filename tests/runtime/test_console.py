"""What is printed, at the width of a small terminal."""

from __future__ import annotations

import pytest

from raydr.pages.query_story import ExplainedPassage, QueryStory, print_story
from raydr.runtime.console import output

WORDS = " ".join(f"word{at}" for at in range(40))
HOSTILE = f"before\x1b[2J\x07after {WORDS}"


def story() -> QueryStory:
    actions = {"action": "drop", "weight": 0.0}
    place = {"artifact": "negatives/bm25-train", "miner": "bm25", "round": 0, "rank": 3, "noise": None, **actions}
    place |= {"score": 19.5, "positive_score": 14.5}
    verdict = {"artifact": "verdicts/margin-bm25-train", "judge": "margin", "score": 0.2, "truth": True, **actions}
    verdict |= {"score_name": "similarity above the limit"}
    passage = ExplainedPassage("p1", "A title", HOSTILE, (verdict,), (place,))
    return QueryStory("q1", "train", "the query", (), (), (passage,), ("verdicts/old",))


@pytest.mark.parametrize("terminal", [True, False])
def test_a_story_is_whole_on_a_terminal_and_in_a_pipe(terminal, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    print_story(story(), output())
    shown, errors = capsys.readouterr()
    assert errors == ""
    lines = shown.splitlines()
    assert (max(map(len, lines)) <= 80) == terminal
    whole = " ".join(shown.split())
    assert WORDS in whole
    assert "(positive: 14.5000): negatives/bm25-train drop" in whole
    assert "margin says drop, similarity above the limit 0.2000; in truth noise (verdicts/margin-bm25-train)" in whole
    assert "left out, made of other data: verdicts/old" in whole
    assert "\x1b" not in shown
    assert "\x07" not in shown
