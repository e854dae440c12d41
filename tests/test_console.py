"""What is printed, at the width of a small terminal."""

from __future__ import annotations

import pytest

from raydr import console
from raydr.console import output, progress_bar, show_table, warn
from raydr.pipeline.why import ExplainedPassage, QueryRecord, print_query

WORDS = " ".join(f"word{at}" for at in range(40))
HOSTILE = f"before\x1b[2J\x07after {WORDS}"


def story() -> QueryRecord:
    actions = {"action": "drop", "weight": 0.0}
    place = {"artifact": "negatives/bm25-train", "miner": "bm25", "round": 0, "rank": 3, "noise": None, **actions}
    place |= {"score": 19.5, "positive_score": 14.5}
    verdict = {"artifact": "verdicts/margin-bm25-train", "judge": "margin", "score": 0.2, "truth": True, **actions}
    verdict |= {"score_name": "similarity above the limit"}
    passage = ExplainedPassage("p1", "A title", HOSTILE, (verdict,), (place,))
    return QueryRecord("q1", "train", "the query", (), (), (passage,), ("verdicts/old",))


@pytest.mark.parametrize("terminal", [True, False])
def test_a_story_is_whole_on_a_terminal_and_in_a_pipe(terminal, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    print_query(story(), output())
    shown, errors = capsys.readouterr()
    assert errors == ""
    lines = shown.splitlines()
    assert (max(map(len, lines)) <= 80) == terminal
    whole = " ".join(shown.split())
    assert WORDS in whole
    assert "(positive: 14.5000): negatives/bm25-train drop" in whole
    assert (
        "margin says drop, similarity above the limit 0.2000; in truth planted noise (verdicts/margin-bm25-train)"
        in whole
    )
    assert "left out, made from other data: verdicts/old" in whole
    assert "\x1b" not in shown
    assert "\x07" not in shown


def test_a_column_of_numbers_keeps_to_the_right_where_a_row_has_none(capsys) -> None:
    show_table("by epoch", ["epoch", "clean share"], [[1, ""], [2, 0.5]])
    assert "│         0.5 │" in capsys.readouterr().err


def test_no_table_cuts_a_word_or_a_path(monkeypatch, capsys) -> None:
    monkeypatch.setattr(console.console, "_width", 60)
    cells = ["train-trained", "0.1234 [0.1111, 0.2222]", "/a/path/that/is/longer/than/half/of/the/screen"]
    show_table("small", ["system", "mean"], [cells[:2]])
    show_table(
        "narrow", ["measure", "bm25 (a)", "bm25+trained (b)", "all words short", "a b c d"], [["recall@100", *"bcde"]]
    )
    show_table("large", ["system", "mean", "at"], [cells])
    small, _, large = capsys.readouterr().err.partition("large")
    narrow = small.partition("narrow")[2].strip().splitlines()
    assert set(map(len, narrow)) == {60}
    assert "bm25+trained" in "".join(narrow)
    assert "│ train-trained │ 0.1234 [0.1111, 0.2222] │" in small
    assert [line.split(maxsplit=1) for line in large.splitlines()[1:]] == [
        ["system", "train-trained"],
        ["mean", cells[1]],
        ["at", cells[2]],
    ]


def test_what_goes_into_a_file_tells_how_far_it_is(monkeypatch, capsys) -> None:
    monkeypatch.setattr(console, "_BETWEEN_LINES_S", 0.0)
    with progress_bar("encode passages", total=2_000, unit="passages") as bar:
        bar.advance(500)
        bar.set(1_500, 2_000)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" passages,")[0].removesuffix(" passages") for line in lines] == [
        "encode passages: 500 of 2,000",
        "encode passages: 1,500 of 2,000",
    ]
    monkeypatch.setattr(console, "_BETWEEN_LINES_S", 30.0)
    with progress_bar("encode passages", total=2, unit="passages") as bar:
        bar.advance()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_sentences_are_broken_between_words_on_a_terminal_and_whole_in_a_file(terminal, monkeypatch, capsys) -> None:
    monkeypatch.setattr(console.console, "_width", 80)
    monkeypatch.setattr(console.console, "_force_terminal", terminal)
    path = "/a/path/" + "that-is-longer/" * 8
    warn(f"{WORDS}\nat {path}, {WORDS}")
    lines = capsys.readouterr().err.replace("\x1b[33m", "").replace("\x1b[0m", "").splitlines()
    assert " ".join(lines) == f"warning: {WORDS} at {path}, {WORDS}"
    assert len(lines) == 2 if not terminal else max(len(line) for line in lines if path not in line) <= 80


@pytest.mark.parametrize("mark", ["\x1b[2J", "\x9b2J", "\r", "\x00", "\u202e", "\u2066", "\ud800"])
def test_nothing_that_a_terminal_obeys_is_printed_wherever_it_comes_from(mark: str, capsys) -> None:
    text = f"be{mark}fore"
    console.say(text)
    warn(text)
    show_table(text, [text, "b"], [[text, 1]])
    console.show_summary(text, {text: text})
    output().print(text, markup=False)
    printed = "".join(capsys.readouterr())
    assert mark not in printed
    assert "fore" in printed
    assert printed.encode()
