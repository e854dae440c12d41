"""KILT's files, in the shape of AIDA's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from data.reading import read_all, values_of
from raydr.data.readers.kilt import KiltReader
from raydr.data.rows import MentionConfig

PAGES = [
    {
        "_id": "7", "wikipedia_id": "7", "wikipedia_title": "Bern", "anchors": [], "categories": "Cities",
        "text": ["Bern\n", "Bern is a city.\n", "Section::::History.\n", "It was founded.\n"],
    },
    {"wikipedia_id": 8, "wikipedia_title": "Bern (surname)", "text": ["Bern (surname)\n"]},
]  # fmt: skip
LINKED = {
    "id": "1161testb SOCCER:5:9",
    "input": "a match that young players lost in [START_ENT] Berne [END_ENT] on a Friday in May",
    "output": [{"answer": "Bern", "provenance": [{"wikipedia_id": "7", "title": "Bern"}]}],
    "meta": {"left_context": "a match", "mention": "Berne", "right_context": "on a Friday"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kilt_knowledgesource.json").write_text("".join(json.dumps(page) + "\n" for page in PAGES))
    pages: Any = LINKED["output"]
    twice = [{"answer": "here"}, {"provenance": pages[0]["provenance"] * 2}]
    asked = {"id": "q2", "input": "where is Bern", "output": twice}
    without = {"id": "q3", "input": "[START_ENT] Bern [END_ENT]"}
    for split, rows in {"train": [LINKED, asked], "dev": [without]}.items():
        (tmp_path / f"aidayago2-{split}-kilt.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_pages_are_passages_and_mentions_queries_in_their_context(folder: Path) -> None:
    rows, bad = read_all(KiltReader(path=str(folder), mention=MentionConfig(window=5)))
    assert not bad
    assert values_of(rows, "passages") == [
        {"passage_id": "7", "title": "Bern", "text": "Bern is a city. Section::::History."},
        {"passage_id": "8", "title": "Bern (surname)", "text": "Bern (surname)"},
    ]
    assert [(row["query_id"], row["text"]) for row in values_of(rows, "queries")] == [
        ("1161testb SOCCER:5:9", "lost in [ Berne ] on a"),
        ("q2", "where is Bern"),
        ("q3", "[ Bern ]"),
    ]
    judged = [(row["query_id"], row["passage_id"]) for row in values_of(rows, "qrels")]
    assert judged == [("1161testb SOCCER:5:9", "7"), ("q2", "7")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input": "lost in [START_ENT] Berne on"}, r"expected one mention between \[START_ENT\] and \[END_ENT\]"),
        ({"input": "[START_ENT] a [END_ENT] [START_ENT] b [END_ENT]"}, "expected one mention"),
        ({"input": "[START_ENT] [END_ENT] b"}, "expected one mention"),
        ({"output": "Bern"}, "'output' must be a list of objects"),
        ({"output": [{"provenance": [{"title": "Bern"}]}]}, r"no 'wikipedia_id' \(it has title\)"),
    ],
)
def test_what_is_no_mention_of_a_page_is_a_bad_row(folder: Path, changes: dict[str, Any], message: str) -> None:
    (folder / "aidayago2-train-kilt.jsonl").write_text(json.dumps(LINKED | changes) + "\n")
    (folder / "kilt_knowledgesource.json").write_text('{"wikipedia_id": "7", "wikipedia_title": "B", "text": "x"}\n')
    rows, [page, task] = read_all(KiltReader(path=str(folder)))
    assert page.startswith("kilt_knowledgesource.json:1: 'text' must be a list of paragraphs, found 'x'")
    assert re.search(message, task)
    assert [row["query_id"] for row in values_of(rows, "queries")] == ["q3"]


def test_settings_of_a_part_are_in_the_keys_of_that_part(folder: Path) -> None:
    base = KiltReader(path=str(folder))
    longer, wider = (
        KiltReader(path=str(folder), **settings) for settings in ({"num_paragraphs": 9}, {"mention": {"window": 9}})
    )
    for source in base.sources():
        assert (base.checksum(source) == longer.checksum(source)) == (not source.has_only_passages)
        assert (base.checksum(source) == wider.checksum(source)) == source.has_only_passages
