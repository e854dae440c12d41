"""Files that other tools write: read as they mean it, or refused by their shape."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from raydr.data.recognition import recognise
from raydr.errors import DataError


def lines(path: Path, records: Sequence[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


JUDGED = ("choice", ["Relevant", "Not relevant"]), ("verdict", ["correct", "incorrect"]), ("event", ["click", "view"])


@pytest.mark.parametrize(("column", "values"), [*JUDGED, ("relevance.responses", [["yes"], ["no"]])])
def test_judgments_in_words_are_not_left_out_silently(column: str, values: list[Any], tmp_path: Path) -> None:
    """Label Studio, Argilla and logs write them so."""
    rows = [{"query": f"q{at}", "passage": f"p{at}", column: values[at % 2]} for at in range(4)]
    assert f"the column {column!r} is not read" in recognise(str(lines(tmp_path / "a.jsonl", rows))).remark


@pytest.mark.parametrize(
    ("record", "message"),
    [
        # mine_hard_negatives of sentence-transformers, output_format="labeled-list", output_scores=True.
        ({"query": "q", "answer": ["p", "n"], "scores": [0.9, 0.1]}, r"'scores' holds lists such as \[0.9, 0.1\]"),
        ({"query": "q", "passage": "p", "label": "0,9"}, "'label' holds '0,9', and a number has a point"),
        ({"query": "q", "passage": "p", "score": "90%"}, "'score' holds '90%', and a number has a point"),
        ({"query": "q", "passage": "p", "clicks": "1,234"}, "'clicks' holds '1,234', and a number has a point"),
        (
            {"query": "q", "document": "4711", "clicks": "3"},
            "'document' holds '4711', where the positives are expected",
        ),
        ({"query": "q", "pos": ["4711"], "neg": ["4712"]}, r"'pos' holds \['4711'\], where the positives are expected"),
        ({"query": "q", "pos": "p", "neg": "['n', 'm']"}, r"'neg' holds lists written as texts, such as \['n', 'm'\]"),
        ({"query": "q", "pos": '["p"]'}, "'pos' holds lists written as texts"),
        ({"_id": "d1", "title": "t", "text": "p"}, "holds passages with titles .* and no queries"),
        ({"docid": "d1", "title": "t", "text": "p"}, "holds passages with titles .* and no queries"),
        ({"_id": "1", "_source": {"query": "q", "document": "p"}}, "Write the values in the objects of '_source' as"),
        ({"id": "1", "fields": {"query": "q", "passage": "p"}}, "Write the values in the objects of 'fields' as"),
    ],
)
def test_files_of_other_tools_are_refused_by_their_shape(record: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        recognise(str(lines(tmp_path / "a.ndjson", [record])))


@pytest.mark.parametrize(("column", "is_doubtful"), [("rating", True), ("clicks", False)])
def test_ratings_that_make_every_pair_relevant_are_named(column: str, is_doubtful: bool, tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"query": f"q{at}", "passage": f"p{at}", column: 1 + at} for at in range(5)])
    remark = recognise(str(path)).remark
    assert ("no label of the first pairs is below 1" in remark) == is_doubtful


@pytest.mark.parametrize(
    ("more", "query"),
    [
        ({"source": "wikipedia"}, "'source', always 'wikipedia'"),
        ({"prompt": "Represent this", "about": "x"}, "'prompt', always 'Represent this'"),
        ({"url": "https://a.example"}, "'url', always 'https://a.example'"),
    ],
)
def test_a_doubtful_column_of_queries_is_named(more: dict[str, str], query: str, tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"passage": f"p{at}", **more} for at in range(3)])
    assert f"the queries are taken from {query}. If they are in another column" in recognise(str(path)).remark


def test_a_file_of_squad_is_refused_as_a_single_object(tmp_path: Path) -> None:
    lines(
        tmp_path / "dev.json", [{"queries": {"q": "query"}, "corpus": {"p": "passage"}, "relevant_docs": {"q": ["p"]}}]
    )
    with pytest.raises(DataError, match="SQuAD, LlamaIndex and pandas hold a single object: convert it"):
        recognise(str(tmp_path / "dev.json"))


@pytest.mark.parametrize(
    ("passages", "topics", "judgments"),
    [
        ("docs.jsonl", "topics/topics.miracl-en-dev.tsv", "qrels/qrels.miracl-en-dev.tsv"),
        ("collection/docs.jsonl", "topics.tsv", "qrels.txt"),
        ("collection.tsv", "topics.tsv", "qrels.txt"),
    ],
)
def test_a_collection_with_judgments_is_no_file_of_pairs(
    passages: str, topics: str, judgments: str, tmp_path: Path
) -> None:
    """Titles of passages, or ids of queries, would else be queries."""
    lines(tmp_path / passages, [{"id": f"d{at}", "title": f"title {at}", "text": f"text {at}"} for at in range(3)])
    for name, line in ((topics, "q1\tquery\n"), (judgments, "q1 0 d1 1\n")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(line * 2)
    with pytest.raises(DataError, match=rf"holds judgments \({judgments}\), and passages or queries under names"):
        recognise(str(tmp_path))


def test_files_without_a_split_in_the_name_are_not_left_out_silently(tmp_path: Path) -> None:
    for name in ("train.jsonl", "hard.jsonl"):
        lines(tmp_path / name, [{"query": "q", "positive": name}])
    assert "also holds hard.jsonl, without a split in the name, which is not read" in recognise(str(tmp_path)).remark


def test_pairs_that_clean_dropped_do_not_come_back_with_their_folder(tmp_path: Path) -> None:
    for name in ("train.kept.jsonl", "train.dropped.jsonl", "test.jsonl"):
        lines(tmp_path / name, [{"query": "q", "positive": name}])
    recognised = recognise(str(tmp_path))
    assert recognised.reader["files"] == {"train": ["train.kept.jsonl"], "test": ["test.jsonl"]}
    lines(tmp_path / "train.jsonl", [{"query": "q", "positive": "p"}])
    with pytest.raises(DataError, match=r"holds train.jsonl and the pairs of it that raydr clean kept"):
        recognise(str(tmp_path))
