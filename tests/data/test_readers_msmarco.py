"""The MS MARCO reader."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from data.reading import read_all, values_of
from raydr.data.readers.msmarco import MsmarcoReader
from raydr.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "collection.tsv.gz").write_bytes(gzip.compress(b'0\tthe "presence" of\n1\tfirst\textra\n2\tthird\n'))
    (tmp_path / "queries.train.tsv").write_text("10\twhat is\n11\twho is\n")
    (tmp_path / "qrels.train.tsv").write_text("10\t0\t0\t1\n11 0 2 1\n11\t2\t1\n11\t0\t2\tx\n")
    (tmp_path / "triples.tsv").write_text("10\t0\t2\n11\t2\t0\n10\t0\t1\n")
    (tmp_path / "negatives.tsv").write_text("10\t2,1\n11\t0,\n")
    return tmp_path


def test_reads_collection_queries_and_trec_judgments(folder: Path) -> None:
    rows, bad = read_all(MsmarcoReader(path=str(folder), splits=["train"]))
    assert values_of(rows, "passages") == [
        {"passage_id": "0", "title": "", "text": 'the "presence" of'},
        {"passage_id": "2", "title": "", "text": "third"},
    ]
    assert [row["text"] for row in values_of(rows, "queries")] == ["what is", "who is"]
    assert [(row["query_id"], row["passage_id"]) for row in values_of(rows, "qrels")] == [("10", "0"), ("11", "2")]
    assert bad == [
        "collection.tsv.gz:2: expected 2 columns (pid, text), found 3",
        "qrels.train.tsv:3: expected 4 columns (qid, 0, pid, relevance), found 3",
        "qrels.train.tsv:4: the relevance must be an integer from -10000 to 10000, found 'x'",
    ]


def test_triples_give_ranked_negatives_and_judgments_only_without_qrels(folder: Path) -> None:
    with_qrels, _ = read_all(MsmarcoReader(path=str(folder), splits=["train"], triples={"train": "triples.tsv"}))
    without, _ = read_all(MsmarcoReader(path=str(folder), splits=["train"], qrels="", triples={"train": "triples.tsv"}))
    negatives = [(row["query_id"], row["passage_id"], row["rank"]) for row in values_of(without, "negatives")]
    assert negatives == [("10", "2", 1), ("11", "0", 1), ("10", "1", 2)]
    assert values_of(with_qrels, "negatives") == values_of(without, "negatives")
    assert [(row["query_id"], row["passage_id"]) for row in values_of(without, "qrels")] == [("10", "0"), ("11", "2")]
    assert len(values_of(with_qrels, "qrels")) == 2


def test_negatives_file_keeps_its_order(folder: Path) -> None:
    rows, bad = read_all(MsmarcoReader(path=str(folder), splits=["train"], negatives={"train": "negatives.tsv"}))
    negatives = [(row["query_id"], row["passage_id"], row["rank"]) for row in values_of(rows, "negatives")]
    assert negatives == [("10", "2", 1), ("10", "1", 2), ("11", "0", 1)]
    assert any(row.startswith("negatives.tsv:2: 'pid' must be a string that is not empty") for row in bad)


def test_a_missing_split_is_an_error(folder: Path) -> None:
    with pytest.raises(DataError, match=r"queries\.dev\.tsv .* with the queries of split dev"):
        MsmarcoReader(path=str(folder)).sources()
