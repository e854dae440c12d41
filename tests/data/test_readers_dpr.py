"""The DPR reader."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from data.reading import read_all, values_of
from raydr.data.readers.dpr import DprReader


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "psgs.tsv").write_text(
        'id\ttext\ttitle\n1\t"Aaron (or ; ""Ahärôn"") is"\tAaron\n2\tplain text\t"""A"" Is for"\n3\tno title\n'
    )
    biencoder = [
        {
            "question": "who is aaron",
            "answers": ["a prophet"],
            "positive_ctxs": [{"title": "Aaron", "text": "is", "psg_id": "1"}, {"text": "t", "passage_id": 2}],
            "hard_negative_ctxs": [{"title": "X", "text": "x", "psg_id": "8", "score": "3.5"}],
            "negative_ctxs": [{"title": "Y", "text": "y", "psg_id": "9"}, {"title": "X", "text": "x", "psg_id": "8"}],
        },
        {"question": "  ", "positive_ctxs": []},
        {"q_id": "own", "question": "second", "answers": [], "positive_ctxs": [{"text": "anon"}]},
    ]
    (tmp_path / "train.json").write_text(json.dumps(biencoder, indent=1))
    (tmp_path / "test.csv").write_text("who\t['Wilhelm', \"O'Neil\"]\nwhat\t[\"json\"]\nbad\t__import__('os')\n")
    return tmp_path


def test_passages_are_unquoted_as_dpr_does(folder: Path) -> None:
    rows, bad = read_all(DprReader(path=str(folder), passages="psgs.tsv", retriever={"test": "test.csv"}))
    assert values_of(rows, "passages") == [
        {"passage_id": "1", "title": "Aaron", "text": 'Aaron (or ; "Ahärôn") is'},
        {"passage_id": "2", "title": '"A" Is for', "text": "plain text"},
    ]
    assert bad[0] == "psgs.tsv:4: expected 3 columns (id, text, title), found 2"


def test_answers_are_parsed_and_never_run(folder: Path) -> None:
    rows, bad = read_all(DprReader(path=str(folder), passages="psgs.tsv", retriever={"test": "test.csv"}))
    assert values_of(rows, "queries") == [
        {"query_id": "test-0", "text": "who", "answers": ["Wilhelm", "O'Neil"]},
        {"query_id": "test-1", "text": "what", "answers": ["json"]},
    ]
    assert bad[-1].startswith("test.csv:3: answers must be a list of strings")


def test_contexts_become_judgments_negatives_and_a_corpus(folder: Path) -> None:
    rows, bad = read_all(DprReader(path=str(folder), biencoder={"train": "train.json"}))
    assert [query["query_id"] for query in values_of(rows, "queries")] == ["train-0", "own"]
    assert [row["passage_id"] for row in values_of(rows, "qrels")][:2] == ["1", "2"]
    assert [(row["passage_id"], row["miner"], row["rank"], row["score"]) for row in values_of(rows, "negatives")] == [
        ("8", "source:hard", 1, 3.5), ("9", "source:random", 1, None), ("8", "source:random", 2, None),
    ]  # fmt: skip
    assert [row["passage_id"] for row in values_of(rows, "passages")][:5] == ["1", "2", "8", "9", "8"]
    assert bad == ["train.json:2: record 2: empty text in 'question'"]


def test_with_a_passages_file_the_contexts_are_only_named(folder: Path) -> None:
    reader = DprReader(path=str(folder), passages="psgs.tsv", biencoder={"train": "train.json"})
    rows, bad = read_all(reader)
    assert {row["passage_id"] for row in values_of(rows, "passages")} == {"1", "2"}
    assert bad[-1].endswith("a context has neither psg_id nor passage_id, so it cannot be found in the passages TSV")
    assert reader.sources()[0].tables == ("passages",)


def test_settings_that_leave_something_out_are_refused(folder: Path) -> None:
    with pytest.raises(ValidationError, match="both are given for 'train'"):
        DprReader(path="x", biencoder={"train": "a"}, retriever={"train": "b"})
    with pytest.raises(ValidationError, match="there is no corpus"):
        DprReader(path="x", retriever={"test": "b"})
