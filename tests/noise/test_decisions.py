"""The file of decisions, and what it comes to."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from raydr.config.sections import JudgeConfig
from raydr.errors import DataError
from raydr.noise.decisions import Decision, Decisions, agreement, append_decision, digest_texts
from raydr.noise.judges.people import DecisionsReader


def decision(reviewer: str, passage_id: str, verdict: str, **changes: Any) -> Decision:
    fields = {"at": "2026-01-01T00:00:00+00:00", "subject": "pairs", "split": "train", "query_id": "q", "texts": "t"}
    return Decision.model_validate(
        fields | {"reviewer": reviewer, "passage_id": passage_id, "verdict": verdict} | changes
    )


def settled(*lines: Decision) -> dict[str, bool]:
    return {label.passage_id: wrong for label, wrong in Decisions(lines).settled("pairs", "train").items()}


def test_a_line_that_was_torn_is_said_and_replaced_by_the_next(tmp_path: Path) -> None:
    file = tmp_path / "a" / "decisions.jsonl"
    assert Decisions.read(str(file)) == Decisions()
    lines = [decision("ada", "p1", "wrong"), decision("ada", "p2\n\u2028", "right"), decision("böb", "p3", "unsure")]
    append_decision(file, lines[0])
    append_decision(file, lines[1])
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"at": "2026')
    assert Decisions.read(str(file)).is_torn
    append_decision(file, lines[2])
    assert Decisions.read(str(file)) == Decisions(tuple(lines))
    assert file.read_bytes().startswith(whole)


def test_a_line_that_is_no_decision_is_named(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    append_decision(file, decision("ada", "p1", "wrong"))
    file.write_bytes(file.read_bytes() + file.read_bytes().replace(b"wrong", b"perhaps"))
    with pytest.raises(DataError, match=r"decisions.jsonl, line 2, is no decision \(verdict: .*'perhaps'"):
        Decisions.read(str(file))


def test_what_an_editor_adds_is_no_decision(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    append_decision(file, decision("ada", "p1", "wrong"))
    whole = Decisions.read(str(file))
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n\r\n"))
    assert Decisions.read(str(file)) == whole


def test_a_last_line_without_a_line_break_stays(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    lines = [decision("ada", f"p{at}", "wrong") for at in range(3)]
    for end, line in enumerate(lines, start=1):
        append_decision(file, line)
        # Many an editor saves it so.
        file.write_bytes(file.read_bytes().removesuffix(b"\n"))
        assert Decisions.read(str(file)) == Decisions(tuple(lines[:end]))


def test_a_file_is_written_where_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    line = decision("ada", "p1", "wrong")
    append_decision(Path("~/review/decisions.jsonl"), line)
    assert Decisions.read("~/review/decisions.jsonl").lines == (line,)
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_many_writers_leave_whole_lines(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    lines = [decision(f"r{at % 8}", f"p{at}" * 50, "right") for at in range(200)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda line: append_decision(file, line), lines))
    decisions = Decisions.read(str(file))
    assert not decisions.is_torn
    assert sorted(decisions.lines, key=str) == sorted(lines, key=str)


def test_undo_brings_back_what_the_same_reviewer_said_before() -> None:
    lines = [decision("ada", "p", "wrong"), decision("bob", "p", "right"), decision("ada", "p", "right")]
    assert settled(*lines) == {"p": False}
    lines.append(decision("ada", "p", "undo"))
    # One says wrong, the other right.
    assert settled(*lines) == {}
    lines.append(decision("bob", "p", "undo"))
    assert settled(*lines) == {"p": True}
    lines += [decision("ada", "p", "undo")] * 2
    assert settled(*lines) == {}
    assert settled(*lines, decision("ada", "p", "right")) == {"p": False}


def test_the_last_word_of_a_reviewer_comes_last() -> None:
    lines = (
        decision("ada", "p1", "wrong"),
        decision("ada", "p2", "right"),
        decision("ada", "p1", "unsure"),
        decision("bob", "p3", "right"),
    )
    assert [decision.passage_id for decision in Decisions(lines).standing("ada")] == ["p2", "p1"]
    undone = Decisions((*lines, decision("ada", "p1", "undo")))
    assert [(decision.passage_id, decision.verdict) for decision in undone.standing("ada")] == [
        ("p1", "wrong"),
        ("p2", "right"),
    ]


@pytest.mark.invariant
def test_what_is_settled_does_not_depend_on_who_came_first() -> None:
    words = [
        decision("ada", "p1", "wrong"), decision("bob", "p1", "wrong"), decision("eve", "p1", "right"),
        decision("ada", "p2", "right"), decision("bob", "p2", "unsure"), decision("eve", "p3", "unsure"),
    ]  # fmt: skip
    assert settled(*words) == {"p1": True, "p2": False}
    assert len({repr(Decisions(lines).settled("pairs", "train")) for lines in itertools.permutations(words)}) == 1
    elsewhere = [decision("ada", "p9", "wrong", split="dev"), decision("ada", "p9", "wrong", subject="negatives")]
    assert settled(*words, *elsewhere) == settled(*words)
    # A warranty may not leave out what is in doubt.
    cautious = Decisions((*words, decision("bob", "p4", "right"), decision("ada", "p4", "wrong")))
    in_doubt = cautious.settled("pairs", "train", unsure_is_right=True)
    assert {label.passage_id: wrong for label, wrong in in_doubt.items()} == {
        "p1": True, "p2": False, "p3": False, "p4": False,
    }  # fmt: skip
    # What was decided of other texts is another label.
    both = (decision("ada", "p", "wrong"), decision("bob", "p", "right", texts="u"))
    other = Decisions(both).settled("pairs", "train")
    assert {label.texts: wrong for label, wrong in other.items()} == {"t": True, "u": False}


def test_texts_that_run_together_are_told_apart() -> None:
    shown = [("a", "b", "c"), ("ab", "", "c"), ("a", "bc", ""), ("a", "b", "c ")]
    assert len({digest_texts(*label) for label in shown}) == len(shown)


def test_agreement_is_that_of_cohen() -> None:
    ada, bob = "wwwwwrrrrr", "wwwwrwrrrr"
    words = {"w": "wrong", "r": "right"}
    lines = [
        decision(name, f"p{at}", words[word])
        for name, row in (("ada", ada), ("bob", bob))
        for at, word in enumerate(row)
    ]
    lines += [
        decision("ada", "x", "unsure"),
        decision("bob", "x", "right"),
        decision("eve", "p0", "wrong"),
        decision("eve", "y", "right"),
    ]
    agreements = {(agreed.first, agreed.second): agreed for agreed in agreement(Decisions(tuple(lines)).standing())}
    assert set(agreements) == {("ada", "bob"), ("ada", "eve"), ("bob", "eve")}
    both = agreements["ada", "bob"]
    # Each says wrong of 5 of 10: by chance they would agree on half; they do on 8.
    assert (both.num_both, both.num_same) == (10, 8)
    assert both.kappa == pytest.approx((0.8 - 0.5) / (1 - 0.5))
    assert agreements["ada", "eve"][2:] == (1, 1, None)


@pytest.mark.parametrize(
    ("listed", "asked"),
    [
        ([{"name": "calibrated", "file": "d.jsonl"}], "people"),
        ([{"name": "people", "file": "d.jsonl"}], "people_negatives"),
        ([{"name": "people", "file": "d.jsonl"}], "calibrated"),
        ([{"name": "people", "file": "d.jsonl"}, {"name": "calibrated", "file": "d.jsonl"}], "calibrated_negatives"),
    ],
)
def test_a_judge_that_is_not_listed_reads_the_file_of_the_listed(listed: list[Any], asked: str) -> None:
    """Else decisions would go to another file than that of the judge whose warranty the page shows."""
    judge = JudgeConfig.model_validate({"judges": ["npc", *listed]}).judge(asked)
    assert isinstance(judge, DecisionsReader)
    assert (judge.name, judge.file) == (asked, "d.jsonl")


def test_judges_of_decisions_read_a_single_file() -> None:
    judges = ["npc", "calibrated", {"name": "people", "file": "d.jsonl"}]
    expected = "calibrated reads that of the working folder, people reads d.jsonl; raydr review writes a single file"
    with pytest.raises(ValidationError, match=expected):
        JudgeConfig.model_validate({"judges": judges})
