"""The BEIR reader."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from data.reading import read_all, values_of
from raydr.data.readers.beir import BeirReader
from raydr.errors import DataError


def test_reads_passages_queries_and_judgments(beir_folder: Path) -> None:
    rows, bad = read_all(BeirReader(path=str(beir_folder)))
    assert not bad
    passages = values_of(rows, "passages")
    assert len(passages) == 120
    written = json.loads((beir_folder / "corpus.jsonl").read_text().splitlines()[7])
    assert passages[7] == {"passage_id": "p007", "title": written["title"], "text": written["text"]}
    assert written["title"]
    assert len(values_of(rows, "queries", "train")) == 40
    assert values_of(rows, "qrels", "dev")[0] == {"query_id": "q40", "passage_id": "p040", "relevance": 1}
    first = values_of(rows, "queries", "train")[0]
    assert first["query_id"] == "q00"
    assert first["answers"]


def test_lines_count_from_one_and_headers_are_skipped(beir_folder: Path) -> None:
    rows, _ = read_all(BeirReader(path=str(beir_folder)))
    assert [row.line for row in rows if row.table == "qrels" and row.split == "test"] == list(range(2, 12))
    assert [row.line for row in rows if row.table == "passages"] == list(range(1, 121))


def test_a_query_goes_to_each_split_that_names_it_and_others_to_none(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text('{"_id": "p", "text": "t"}\n')
    queries = [json.dumps({"_id": f"q{at}", "text": "t"}) for at in range(3)]
    (tmp_path / "queries.jsonl").write_text("\n".join(queries))
    (tmp_path / "qrels" / "a.tsv").write_text("q0\tp\t1\nq1\tp\t0\n")
    (tmp_path / "qrels" / "b.tsv").write_text("q1\tp\t1\n")
    rows, bad = read_all(BeirReader(path=str(tmp_path)))
    assert not bad
    assert [(row.values["query_id"], row.split) for row in rows if row.table == "queries"] == [
        ("q0", "a"), ("q1", "a"), ("q1", "b"), ("q2", ""),
    ]  # fmt: skip
    assert values_of(rows, "qrels", "a")[1]["relevance"] == 0


def test_judgments_as_trec_eval_reads_them_are_read(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text('{"_id": "p", "text": "t"}\n')
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "t"}\n{"_id": "q2", "text": "t"}\n')
    (tmp_path / "qrels" / "test.tsv").write_text("q1 0 p 2\nq2\t0\tp\t0\nq2 0 p high\nq2 0 p\n")
    rows, bad = read_all(BeirReader(path=str(tmp_path)))
    assert values_of(rows, "qrels", "test") == [
        {"query_id": "q1", "passage_id": "p", "relevance": 2}, {"query_id": "q2", "passage_id": "p", "relevance": 0},
    ]  # fmt: skip
    assert [row.values["query_id"] for row in rows if row.table == "queries"] == ["q1", "q2"]
    assert bad == [
        "test.tsv:3: the relevance must be an integer from -10000 to 10000, found 'high'",
        "test.tsv:4: expected 3 columns (query-id, corpus-id, score), found 1",
    ]


def test_answers_come_from_a_file_of_their_own(beir_folder: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text('{"_id": "q00", "answers": ["x", "y"]}\n')
    reader = BeirReader(path=str(beir_folder), answers=str(answers), splits=["train"])
    queries = values_of(read_all(reader)[0], "queries", "train")
    assert queries[0]["answers"] == ["x", "y"]
    assert queries[1]["answers"] is None
    assert any(path.endswith("answers.jsonl") for source in reader.sources() for path in source.also)


def test_malformed_rows_are_named_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text(
        '{"_id": "p", "text": 3}\n{"title": "x", "text": "y"}\n{"_id": "p2"}\n{"_id": "p3", "text": null}\n'
    )
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "t", "metadata": {"answers": "x"}}\n')
    (tmp_path / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq\tp\nq\tp\thigh\n")
    _, bad = read_all(BeirReader(path=str(tmp_path)))
    assert bad == [
        "corpus.jsonl:1: 'text' must be a string, found 3",
        "corpus.jsonl:2: no '_id' (it has title, text)",
        "corpus.jsonl:3: no 'text' (it has _id)",
        "corpus.jsonl:4: 'text' is null",
        "queries.jsonl:1: answers must be a list of strings, found 'x'",
        "train.tsv:2: expected 3 columns (query-id, corpus-id, score), found 2",
        "train.tsv:3: the relevance must be an integer from -10000 to 10000, found 'high'",
    ]


def test_missing_files_are_named_with_what_is_there(beir_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file .*nope\.jsonl .* with the passages.*corpus\.jsonl"):
        BeirReader(path=str(beir_folder), corpus="nope.jsonl").sources()
    with pytest.raises(DataError, match=r"no file .*queries\.jsonl"):
        BeirReader(path=str(tmp_path)).sources()


def test_the_corpus_does_not_depend_on_queries_and_judgments(beir_folder: Path) -> None:
    sources = BeirReader(path=str(beir_folder)).sources()
    assert [source.role for source in sources if "passages" in source.tables] == ["corpus"]


def test_ids_keep_the_spaces_of_unicode_and_hidden_files_are_no_splits(tmp_path: Path) -> None:
    ids = ["a\u00a0b", "c\u2028d", "e\u0085f", "g\u3000h"]
    (tmp_path / "qrels").mkdir()
    rows = [{"_id": query_id, "text": "x\u2028y"} for query_id in ids]
    for name in ("corpus", "queries"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    judged = [f"{query_id} 0 {query_id} 1" for query_id in ids]
    (tmp_path / "qrels" / "dev.tsv").write_text("\ufeff" + "\n".join(judged) + "\n")
    for hidden in ("._dev.tsv", ".test.tsv", ".cache/old.tsv", "__MACOSX/dev.tsv"):
        (tmp_path / "qrels" / hidden).parent.mkdir(exist_ok=True)
        (tmp_path / "qrels" / hidden).write_bytes(b"\x00\x05\x16\x07")
    rows_read, bad = read_all(BeirReader(path=str(tmp_path)))
    assert not bad
    assert {row.split for row in rows_read if row.table == "qrels"} == {"dev"}
    assert [row["passage_id"] for row in values_of(rows_read, "qrels")] == ids
    assert [row["passage_id"] for row in values_of(rows_read, "passages")] == ids


def test_of_judgments_and_their_compressed_copy_the_plain_file_counts(beir_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("q\tp\t1\n")
    (tmp_path / "dev.tsv.gz").write_bytes(gzip.compress(b"q\tother\t1\n"))
    rows, _ = read_all(BeirReader(path=str(beir_folder), qrels=str(tmp_path)))
    assert [row["passage_id"] for row in values_of(rows, "qrels")] == ["p"]


@pytest.mark.parametrize("score", ["nan", "inf", "1_0", "True", "\u0661", "1e400", "10001", ""])
def test_a_judgment_that_is_no_number_is_a_bad_row(score: str, beir_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv"
    path.write_text(f"q\tp\t1\nq\tp2\t{score}\n")
    rows, bad = read_all(BeirReader(path=str(beir_folder), qrels=str(tmp_path), splits=["dev"]))
    assert [row["relevance"] for row in values_of(rows, "qrels")] == [1]
    assert bad == [f"dev.tsv:2: the relevance must be an integer from -10000 to 10000, found {score!r}"]


def test_a_passage_may_be_a_title_alone(beir_folder: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    rows = [
        {"_id": "a", "title": "t", "text": ""},
        {"_id": "b", "title": "t"},
        {"_id": "c", "title": "t", "text": None},
    ]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"_id": "d"}, {"_id": "e", "title": " "}]))
    read, bad = read_all(BeirReader(path=str(beir_folder), corpus=str(corpus)))
    assert [(row["passage_id"], row["text"]) for row in values_of(read, "passages")] == [
        ("a", ""),
        ("b", ""),
        ("c", ""),
    ]
    assert len(bad) == 2
