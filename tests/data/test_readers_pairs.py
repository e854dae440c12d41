"""The pair reader: formats, layouts and the column mapping."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.reading import read_all, values_of
from raydr.data.pairs import PairColumns
from raydr.data.readers.pairs import PairsReader
from raydr.data.rows import BadRows
from raydr.errors import DataError

RECORDS = [
    {"query": "how to sort", "positive": "sorted(x)", "neg": ["x.pop()", "x[0]"]},
    {"query": "how to reverse", "positive": "x[::-1]", "neg": ["sorted(x)"]},
]


def write(folder: Path, name: str) -> None:
    if name.endswith("jsonl"):
        (folder / name).write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    elif name.endswith("json"):
        (folder / name).write_text(json.dumps(RECORDS))
    elif name.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist(RECORDS), folder / name)
    else:
        mark = "," if name.endswith("csv") else "\t"
        lines = [mark.join(["query", "positive", "neg"])]
        lines += [mark.join([record["query"], record["positive"], record["neg"][0]]) for record in RECORDS]
        (folder / name).write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet", "a.csv", "a.tsv"])
def test_every_format_gives_the_same_pairs(tmp_path: Path, name: str) -> None:
    write(tmp_path, name)
    reader = PairsReader(path=str(tmp_path), files={"train": name}, columns=PairColumns(negatives=["neg"]))
    rows, bad = read_all(reader)
    assert not bad
    assert [query["text"] for query in values_of(rows, "queries")] == ["how to sort", "how to reverse"]
    texts = {row["passage_id"]: row["text"] for row in values_of(rows, "passages")}
    assert [texts[row["passage_id"]] for row in values_of(rows, "qrels")] == ["sorted(x)", "x[::-1]"]
    assert texts[values_of(rows, "negatives")[0]["passage_id"]] == "x.pop()"


def test_equal_texts_share_an_id(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl")
    reader = PairsReader(path=str(tmp_path), files={"train": "a.jsonl"}, columns=PairColumns(negatives=["neg"]))
    rows, _ = read_all(reader)
    assert values_of(rows, "qrels")[0]["passage_id"] == values_of(rows, "negatives")[2]["passage_id"]
    assert len({row["passage_id"] for row in values_of(rows, "passages")}) == 4


def test_sentence_transformers_layout(tmp_path: Path) -> None:
    record = {"anchor": "q", "positive": "p", "negative_10": "n10", "negative_2": "n2", "negative_1": "n1"}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    reader = PairsReader(path=str(tmp_path), files={"train": "a.jsonl"}, layout="sentence-transformers")
    rows, bad = read_all(reader)
    assert not bad
    texts = {row["passage_id"]: row["text"] for row in values_of(rows, "passages")}
    assert [(texts[row["passage_id"]], row["rank"]) for row in values_of(rows, "negatives")] == [
        ("n1", 1), ("n2", 2), ("n10", 3),
    ]  # fmt: skip


def test_tevatron_layout(tmp_path: Path) -> None:
    record = {
        "query_id": "7", "query": "q",
        "positive_passages": [{"docid": "1", "title": "t", "text": "a"}, {"docid": "2", "text": "b"}],
        "negative_passages": [{"docid": "3", "title": "", "text": "c"}],
    }  # fmt: skip
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    rows, bad = read_all(PairsReader(path=str(tmp_path), files={"train": "a.jsonl"}, layout="tevatron"))
    assert not bad
    assert [(row["query_id"], row["passage_id"]) for row in values_of(rows, "qrels")] == [("7", "1"), ("7", "2")]
    assert values_of(rows, "passages")[0] == {"passage_id": "1", "title": "t", "text": "a"}
    assert values_of(rows, "negatives")[0]["passage_id"] == "3"


def test_ids_title_answers_and_split_come_from_columns(tmp_path: Path) -> None:
    record = {"i": 5, "q": "q", "p": "p", "pi": "P5", "t": "title", "a": ["x"], "s": "dev"}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    columns = PairColumns(query="q", positive="p", query_id="i", passage_id="pi", title="t", answers="a", split="s")
    rows, _ = read_all(PairsReader(path=str(tmp_path), files={"all": "a.jsonl"}, columns=columns))
    assert {row.split for row in rows if row.table != "passages"} == {"dev"}
    assert values_of(rows, "queries") == [{"query_id": "5", "text": "q", "answers": ["x"]}]
    assert values_of(rows, "passages") == [{"passage_id": "P5", "title": "title", "text": "p"}]


def test_a_record_that_lacks_something_is_one_bad_row(tmp_path: Path) -> None:
    lines = ['{"query": "q"}', '{"query": "", "positive": "p"}', '{"query": "q", "positive": 5}', "{"]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    rows, bad = read_all(PairsReader(path=str(tmp_path), files={"train": "a.jsonl"}))
    assert not rows
    assert bad[:3] == [
        "a.jsonl:1: no 'positive' (it has query)",
        "a.jsonl:2: empty text in 'query'",
        "a.jsonl:3: 'positive' must be a string or a list of strings, found 5",
    ]
    assert bad[3].startswith("a.jsonl:4: broken JSON")


def test_a_broken_parquet_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and then nothing")
    reader = PairsReader(path=str(tmp_path), files={"train": "a.parquet"})
    with pytest.raises(DataError, match=r"a\.parquet cannot be read as Parquet after row 0"):
        read_all(reader)


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text("<a/>")
    with pytest.raises(DataError, match=r"a\.xml is none of the formats"):
        PairsReader(path=str(tmp_path), files={"train": "a.xml"}).sources()


def test_lists_of_positives_and_negatives_with_ids_of_their_own(tmp_path: Path) -> None:
    record = {"query": "q", "pos": ["a", "b"], "pi": ["1", 2], "neg": ["c", " ", "d"], "ni": [3, 4, 5]}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n" + json.dumps({**record, "ni": [3]}))
    columns = PairColumns(positive="pos", passage_id="pi", negatives=["neg"], negative_ids=["ni"])
    rows, bad = read_all(PairsReader(path=str(tmp_path), files={"train": "a.jsonl"}, columns=columns))
    assert [row["passage_id"] for row in values_of(rows, "qrels")] == ["1", "2"]
    assert [(row["passage_id"], row["rank"]) for row in values_of(rows, "negatives")] == [("3", 1), ("5", 2)]
    assert bad == ["a.jsonl:2: 'neg' has 3 texts, 'ni' has 1 ids"]


def test_labelled_pairs_are_judgments(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("query,positive,score\nq,good,1\nq,better,2.0\nq,bad,0\nq,worst,\n")
    columns = PairColumns(label="score", relevant_from=0.5)
    rows, bad = read_all(PairsReader(path=str(tmp_path), files={"train": "a.csv"}, columns=columns))
    assert [row["relevance"] for row in values_of(rows, "qrels")] == [1, 2, 0]
    assert bad == ["a.csv:5: 'score' must be a number, found ''"]


LABELS = {
    "whole": ([5.0, 4, "3", 1.0], [5, 4, 3, 0], "up to 5: they are taken as grades"),
    "not whole": ([5.0, 4.8, 3.0, 1.2], [1, 1, 1, 0], r"such as 4\.8 are not whole"),
    "not whole in the last row": ([5, 4, 3, 1.5], [1, 1, 1, 0], r"such as 1\.5 are not whole"),
    "too large for a relevance": ([5, 4, 3e9, 1], [1, 1, 1, 0], "such as 3e"),
    "clicks": ([5, 4, 20_000, 1], [1, 1, 1, 0], r"such as 20000 are higher than grades \(10000\)"),
    "true and false": ([True, True, True, False], [1, 1, 1, 0], ""),
}


@pytest.mark.parametrize("case", LABELS)
@pytest.mark.parametrize("end", ["jsonl", "parquet", "csv"])
def test_labels_of_a_file_are_grades_or_they_are_not(case: str, end: str, tmp_path: Path) -> None:
    labels, expected, remark = LABELS[case]
    rows = [{"query": f"q{at}", "positive": f"p{at}", "label": label} for at, label in enumerate(labels)]
    file = tmp_path / f"train.{end}"
    if end == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif end == "csv":
        file.write_text("query,positive,label\n" + "".join(",".join(map(str, row.values())) + "\n" for row in rows))
    else:
        kind = pa.bool_() if case == "true and false" else pa.float64()
        values = labels if case == "true and false" else list(map(float, labels))
        columns = {key: [row[key] for row in rows] for key in ("query", "positive")}
        pq.write_table(pa.table({**columns, "label": pa.array(values, kind)}), file)
    reader = PairsReader(
        path=str(tmp_path),
        files={"train": file.name},
        columns=PairColumns(label="label", relevant_from=1 if case == "true and false" else 3),
    )
    bad_rows = BadRows("train")
    [source] = reader.sources()
    read = list(reader.read(source, bad_rows))
    assert [row["relevance"] for row in values_of(read, "qrels")] == expected
    assert not bad_rows.count
    assert bool(bad_rows.remarks) == bool(remark)
    assert all(re.search(remark, line) for line in bad_rows.remarks)


@pytest.mark.parametrize(
    "label", ["NaN", "Infinity", "-Infinity", '"nan"', '"inf"', '"1_0"', '"high"', "null", "[1]", "1e999"]
)
def test_a_label_that_is_no_number_is_a_bad_row(label: str, tmp_path: Path) -> None:
    row = '{"query": "q", "positive": "p", "label": %s}\n'
    (tmp_path / "a.jsonl").write_text(row % 1 + row % label)
    reader = PairsReader(path=str(tmp_path), files={"train": "a.jsonl"}, columns=PairColumns(label="label"))
    rows, bad = read_all(reader)
    assert [values["relevance"] for values in values_of(rows, "qrels")] == [1]
    assert not values_of(rows, "negatives")
    assert bad[0].startswith("a.jsonl:2: 'label' must be a number, found ")


def test_a_positive_may_be_a_title_alone(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("query,title,positive\nq,a title,\nr,,\n")
    reader = PairsReader(path=str(tmp_path), files={"train": "a.csv"}, columns=PairColumns(title="title"))
    rows, bad = read_all(reader)
    [passage] = values_of(rows, "passages")
    assert (passage["title"], passage["text"]) == ("a title", "")
    assert bad == ["a.csv:3: empty text in 'positive'"]
