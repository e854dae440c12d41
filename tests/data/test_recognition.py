"""What somebody's files are taken for, and that the reader then reads them without a bad row."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_linking import make_worlds

from raydr.component import build
from raydr.config.first_config import first_config
from raydr.data.pairs_in_memory import place_pairs
from raydr.data.readers.base import Reader, Row
from raydr.data.recognition import Recognised, recognise
from raydr.data.rows import BadRows
from raydr.errors import ConfigError, DataError


def lines(path: Path, records: Sequence[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def table(path: Path, rows: Sequence[Sequence[Any]]) -> Path:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def rows_of(recognised: Recognised) -> list[Row]:
    """All rows, read as the recognised settings say."""
    reader = build(Reader, recognised.reader)
    rows = []
    for source in reader.sources():
        bad = BadRows(source.path)
        rows += reader.read(source, bad)
        assert not bad.count, bad.kept[0]
    return rows


def counted(rows: Sequence[Row]) -> dict[str, int]:
    named = {}
    for row in rows:
        what = row.table if row.values.get("relevance") != 0 else "not relevant"
        named[what] = named.get(what, 0) + 1
    return named


PAIRS = [(f"question {n}", f"answer {n}", f"wrong {n}") for n in range(5)]
TEVATRON = {"docid": "1", "title": "t", "text": "x"}


@pytest.mark.parametrize(
    ("records", "what", "counts"),
    [
        (
            [{"anchor": q, "positive": p, "negative": n} for q, p, n in PAIRS],
            "triplets: query in 'anchor', positive in 'positive', negatives in 'negative'",
            {"queries": 5, "passages": 10, "qrels": 5, "negatives": 5},
        ),
        (
            [{"Question": q, "Answer": p} for q, p, _ in PAIRS],
            "pairs: query in 'Question', positive in 'Answer'",
            {"queries": 5, "passages": 5, "qrels": 5},
        ),
        (
            # Names that say nothing: the first column asks.
            [{"title": q, "source_code": p} for q, p, _ in PAIRS],
            "pairs: query in 'title', positive in 'source_code'",
            {"queries": 5, "passages": 5, "qrels": 5},
        ),
        (
            [{"sentence1": q, "sentence2": p, "score": 5 * n / 4} for n, (q, p, _) in enumerate(PAIRS)],
            "scored pairs: query in 'sentence1', positive in 'sentence2', judgment in 'score', relevant from 2.5",
            {"queries": 5, "passages": 5, "qrels": 3, "not relevant": 2},
        ),
        (
            [{"query": q, "pos": [p, p + "!"], "neg": [n, "x", "y"]} for q, p, n in PAIRS],
            "lists of positives and negatives: query in 'query', positive in 'pos', negatives in 'neg'",
            {"queries": 5, "passages": 25, "qrels": 10, "negatives": 15},
        ),
        (
            [{"qid": q, "query": q, "pos": [p], "pos_ids": [p], "neg": [n], "neg_ids": [n]} for q, p, n in PAIRS],
            "lists of positives and negatives: query in 'query', positive in 'pos', negatives in 'neg', ids of queries "
            "in 'qid', ids of positives in 'pos_ids', ids of negatives in 'neg_ids'",
            {"queries": 5, "passages": 10, "qrels": 5, "negatives": 5},
        ),
        (
            [{"query_id": "1", "query": "q", "positive_passages": [TEVATRON], "negative_passages": []}],
            "tevatron's records, passages with ids of their own",
            {"queries": 1, "passages": 1, "qrels": 1},
        ),
    ],
    ids=["triplets", "pairs", "two columns", "scored", "lists", "lists with ids", "tevatron"],
)
def test_a_file_of_pairs_is_known_by_its_columns(tmp_path, records, what, counts):
    recognised = recognise(str(lines(tmp_path / "mine.jsonl", records)))
    assert recognised.what == what
    assert counted(rows_of(recognised)) == counts
    assert recognised.num_queries == len(records)


def test_ids_of_rows_are_no_ids_of_queries(tmp_path):
    """Taken for such, one query would be several, and its positives each other's negatives."""
    records = [{"id": n, "docid": "same", "query": "q", "positive": f"p{n}"} for n in range(3)]
    rows = rows_of(recognise(str(lines(tmp_path / "mine.jsonl", records))))
    assert len({row.values["query_id"] for row in rows if row.table == "queries"}) == 1
    assert len({row.values["passage_id"] for row in rows if row.table == "passages"}) == 3


def test_ids_made_of_content_do_not_depend_on_the_file(tmp_path):
    records = [{"query": q, "positive": p} for q, p, _ in PAIRS]
    first = rows_of(recognise(str(lines(tmp_path / "a" / "mine.jsonl", records))))
    other = rows_of(
        recognise(str(table(tmp_path / "mine.csv", [["query", "positive"], *[p[:2] for p in PAIRS[::-1]]])))
    )
    ids = [{(row.table, str(row.values)) for row in rows} for rows in (first, other)]
    assert ids[0] == ids[1]


def test_a_folder_of_files_has_the_splits_that_their_names_say(tmp_path):
    for name in ("train-0.jsonl", "train-1.jsonl", "validation.jsonl"):
        lines(tmp_path / "mine" / name, [{"query": f"{name} {q}", "positive": p} for q, p, _ in PAIRS])
    recognised = recognise(str(tmp_path / "mine"))
    assert recognised.reader["files"] == {"train": ["train-0.jsonl", "train-1.jsonl"], "dev": ["validation.jsonl"]}
    assert counted(rows_of(recognised))["queries"] == 15
    assert first_config(str(tmp_path / "mine")).raw["data"]["hold_out"] == {"test": 0.1}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["test-0.jsonl", "test-1.jsonl"], ["test"]),
        (["test.jsonl", "test_human.jsonl"], ["test", "test_human"]),
        (["nq-test.jsonl", "tq-test.jsonl"], ["nq-test", "tq-test"]),
    ],
)
def test_several_test_sets_are_measured_apart(names, expected, tmp_path):
    for name in ("train.jsonl", "dev.jsonl", *names):
        lines(tmp_path / "mine" / name, [{"query": f"{name} {q}", "positive": p} for q, p, _ in PAIRS])
    files = recognise(str(tmp_path / "mine")).reader["files"]
    assert [split for split in files if split not in ("train", "dev")] == expected
    assert first_config(str(tmp_path / "mine")).raw["data"].get("test_splits", ["test"]) == expected


def test_no_split_of_a_saved_data_set_takes_the_place_of_another(tmp_path):
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_list([{"anchor": q, "positive": p} for q, p, _ in PAIRS])
    datasets.DatasetDict({"test_human": made, "test": made, "train": made}).save_to_disk(tmp_path / "saved")
    splits = recognise(str(tmp_path / "saved")).reader["splits"]
    assert splits == {"test": "test", "train": "train", "test_human": "test_human"}


def test_beir_msmarco_dpr_and_saved_data_sets_are_known(tmp_path, beir_folder):
    assert recognise(str(beir_folder)).reader == {"name": "beir", "path": str(beir_folder)}
    assert recognise(str(beir_folder)).num_queries == 40
    assert first_config(str(beir_folder)).raw["data"].keys() == {"reader"}
    ms = tmp_path / "ms"
    ms.mkdir()
    (ms / "collection.tsv").write_text("1\tpassage\n")
    (ms / "queries.train.tsv").write_text("q\tquery\n")
    (ms / "qrels.train.tsv").write_text("q\t0\t1\t1\n")
    assert counted(rows_of(recognise(str(ms)))) == {"passages": 1, "queries": 1, "qrels": 1}
    assert recognise(str(ms)).num_queries == 1
    (tmp_path / "zeshel").mkdir()
    zeshel = make_worlds(Path(tmp_path / "zeshel"), {"heldout_train_seen": "a", "train": "ab", "val": "c"}, mentions=3)
    assert counted(rows_of(recognise(str(zeshel)))) == {"passages": 90, "queries": 12, "qrels": 12}
    first = first_config(str(zeshel)).raw
    assert first["data"].items() >= {"dev_split": "val", "hold_out": {"test": 0.1}}.items()
    assert (recognise(str(zeshel)).num_queries, first["train"]["batch_size"]) == (6, 2)
    dpr = tmp_path / "dpr"
    dpr.mkdir()
    (dpr / "psgs.tsv").write_text("id\ttext\ttitle\n1\tpassage\tof it\n")
    context = {"passage_id": "1", "title": "of it", "text": "passage"}
    record = {"question": "q", "answers": [], "positive_ctxs": [context], "hard_negative_ctxs": []}
    (dpr / "nq-train.json").write_text(json.dumps([record]))
    assert counted(rows_of(recognise(str(dpr)))) == {"passages": 1, "queries": 1, "qrels": 1}
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_list([{"anchor": q, "positive": p} for q, p, _ in PAIRS])
    datasets.DatasetDict({"train": made, "validation": made}).save_to_disk(tmp_path / "saved")
    recognised = recognise(str(tmp_path / "saved"))
    assert recognised.reader["splits"] == {"train": "train", "dev": "validation"}
    assert counted(rows_of(recognised))["qrels"] == 10


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (("search_term", "clicked_text", "clicks"), ("search_term", "clicked_text", "clicks")),
        (("num_clicks", "Search Query", "product title"), ("Search Query", "product title", "num_clicks")),
    ],
)
def test_logs_of_clicks_are_pairs_from_a_click_on(tmp_path, names, columns):
    query, positive, clicks = columns
    rows = [{query: f"q{at}", positive: f"text {at}", clicks: at} for at in range(3)]
    lines = [",".join(names), *(",".join(str(row[name]) for name in names) for row in rows)]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(lines) + "\n")
    recognised = recognise(str(path))
    expected = {"query": query, "positive": positive, "label": clicks, "relevant_from": 1}
    assert recognised.reader["columns"] == expected
    relevances = [row.values["relevance"] for row in rows_of(recognised) if row.table == "qrels"]
    assert relevances == [0, 1, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": 1, "b": 2}', r"has the columns 'a', 'b', and none whose name says that it holds the queries"),
        ('{"query": "q", "b": 2}', "that it holds the positives"),
        (
            '{"query": "q", "positive": {"text": "p"}}',
            r"'positive' holds \{'text': 'p'\}, where the positives are expected",
        ),
        ('{"query": "q", "positive": [["p"]]}', r"'positive' holds \[\['p'\]\], where the positives are expected"),
        ('{"query": 7, "positive": "p"}', r"'query' holds 7, where the queries are expected"),
        ("{broken", r"holds no record: .*mine.jsonl:1: broken JSON"),
    ],
)
def test_what_is_not_known_is_named(tmp_path, content, message):
    path = tmp_path / "mine.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        recognise(str(path))


def test_a_positive_or_a_list_of_them(tmp_path):
    records = [{"query": "a", "positive": "b"}, {"query": "c", "positive": ["d", "e"]}]
    recognised = recognise(str(lines(tmp_path / "mine.jsonl", records)))
    assert len([row for row in rows_of(recognised) if row.table == "qrels"]) == 3


@pytest.mark.parametrize("more", [{}, {"negative": "c"}, {"source": "web"}])
def test_a_query_that_is_no_text_is_a_bad_row_and_another_column_no_query(tmp_path, more):
    rows = [{"query": query, "positive": f"text {at}", **more} for at, query in enumerate(["a", 5, "b"])]
    recognised = recognise(str(lines(tmp_path / "mine.jsonl", rows)))
    assert recognised.reader["columns"]["query"] == "query"
    assert recognised.reader["columns"]["positive"] == "positive"


def test_a_folder_of_something_else_says_what_is_known(tmp_path):
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "b.jsonl").touch()
    with pytest.raises(DataError, match=r"holds a.jsonl, b.jsonl, none of which has a known format and split"):
        recognise(str(tmp_path))
    with pytest.raises(DataError, match="there is no file or folder"):
        recognise(str(tmp_path / "none"))


def test_somebodys_config_is_not_written_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = first_config(str(lines(tmp_path / "my pairs.jsonl", [{"query": q, "positive": p} for q, p, _ in PAIRS])))
    assert first.write() == first.write() == Path("my-pairs.yaml")
    assert first.raw["train"]["batch_size"] == 2
    Path("my-pairs.yaml").write_text("name: mine\n")
    with pytest.raises(ConfigError, match=r"my-pairs.yaml exists already and has other settings"):
        first.write()
    assert Path("my-pairs.yaml").read_text() == "name: mine\n"


@pytest.mark.invariant
@pytest.mark.parametrize("value", [None, "", "NaN", float("nan"), float("inf"), "1,5", "maybe", [1]])
def test_a_label_that_is_no_number_does_not_make_all_pairs_relevant(value: Any, tmp_path: Path) -> None:
    records = [{"query": f"q{at}", "passage": f"p{at}", "label": at % 2} for at in range(4)]
    path = lines(tmp_path / "pairs.jsonl", [*records, {"query": "q", "passage": "p", "label": value}])
    reader = build(Reader, recognise(str(path)).reader)
    [source] = reader.sources()
    bad = BadRows(source.path)
    rows = list(reader.read(source, bad))
    assert [row.values["relevance"] for row in rows if row.table == "qrels"] == [0, 1, 0, 1]
    assert [str(row) for row in bad.kept] == [f"{path}:5: 'label' must be a number, found {value!r}"]


def test_words_of_a_spreadsheet_are_labels(tmp_path: Path) -> None:
    """Each pair would else count as relevant, those that say no too."""
    path = tmp_path / "pairs.csv"
    path.write_text(
        "query,passage,label\r\nq1,p1,Yes\r\nq2,p2,no\r\nq3,p3, TRUE \r\n", encoding="utf-8-sig", newline=""
    )
    reader = build(Reader, recognise(str(path)).reader)
    [source] = reader.sources()
    rows = list(reader.read(source, BadRows(source.path)))
    assert [row.values["relevance"] for row in rows if row.table == "qrels"] == [1, 0, 1]


def test_labels_that_are_no_numbers_at_all_are_remarked_on(tmp_path: Path, capsys: Any) -> None:
    records = [{"query": f"q{at}", "passage": f"p{at}", "label": "sports"} for at in range(4)]
    path = lines(tmp_path / "pairs.jsonl", records)
    assert "label" not in first_config(str(path)).raw["data"]["reader"]["columns"]
    output = " ".join(capsys.readouterr().err.split())
    assert "the column 'label' is not read: 'sports' is no number. Each pair counts as relevant" in output


@pytest.mark.parametrize(
    ("labels", "expected"), [(["True", "False"], [1, 0]), (["true", "FALSE"], [1, 0]), (["1", "0"], [1, 0])]
)
def test_labels_of_csv_may_be_words(labels: list[str], expected: list[int], tmp_path: Path) -> None:
    rows = [["query", "passage", "label"], *([f"q{at}", f"p{at}", label] for at, label in enumerate(labels))]
    judged = rows_of(recognise(str(table(tmp_path / "pairs.csv", rows))))
    assert [row.values["relevance"] for row in judged if row.table == "qrels"] == expected


def test_labels_of_parquet_may_be_decimals(tmp_path: Path) -> None:
    labels = pa.array([Decimal("1.00"), Decimal("0.00")])
    pq.write_table(pa.table({"query": ["a", "b"], "passage": ["c", "d"], "label": labels}), tmp_path / "pairs.parquet")
    judged = rows_of(recognise(str(tmp_path / "pairs.parquet")))
    assert [row.values["relevance"] for row in judged if row.table == "qrels"] == [1, 0]


def test_columns_of_parquet_with_one_name_are_refused(tmp_path: Path) -> None:
    texts = [pa.array(["a"]), pa.array(["b"]), pa.array(["c"])]
    pq.write_table(pa.Table.from_arrays(texts, names=["query", "passage", "passage"]), tmp_path / "pairs.parquet")
    with pytest.raises(DataError, match=r"pairs\.parquet has the columns 'passage' twice"):
        recognise(str(tmp_path / "pairs.parquet"))


def test_values_of_parquet_alone_are_refused_by_file_and_row(tmp_path: Path) -> None:
    far = pa.array([10**18], pa.timestamp("ms"))
    pq.write_table(pa.table({"query": ["a"], "passage": ["b"], "when": far}), tmp_path / "pairs.parquet")
    with pytest.raises(DataError, match=r"pairs\.parquet cannot be read as Parquet after row 0"):
        recognise(str(tmp_path / "pairs.parquet"))


def test_a_first_line_that_is_no_header_is_remarked_on(tmp_path: Path, capsys: Any) -> None:
    rows = [["the first query", "its passage"], ["the second query", "its own passage"]]
    first_config(str(table(tmp_path / "pairs.csv", rows)))
    output = " ".join(capsys.readouterr().err.split())
    assert "the queries are taken from 'the first query', and the passages from 'its passage'" in output
    first_config(str(table(tmp_path / "named.csv", [["query", "other"], *rows])))
    assert not capsys.readouterr().err


def test_quotes_that_enclose_rows_of_tsv_are_bad_rows(tmp_path: Path) -> None:
    texts = ["query\tpassage", "a\tb", 'c\t"d', "e\tf", 'g"\th', 'i\t"j ""k"""']
    (tmp_path / "pairs.tsv").write_text("\n".join(texts) + "\n")
    reader = build(Reader, recognise(str(tmp_path / "pairs.tsv")).reader)
    bad = BadRows("pairs.tsv")
    rows = list(reader.read(reader.sources()[0], bad))
    assert [row.values["text"] for row in rows if row.table == "queries"] == ["a", "i"]
    assert [str(row) for row in bad.kept] == [
        f"pairs.tsv:{line}: a quoted text from line 3 to 5 has tabs in it, as rows have" for line in (3, 4, 5)
    ]


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("split", ["train", None], "'split' is null"),
        ("split", ["train", 3], "'split' must be a string, found 3"),
        ("negative", ["n", 5], "'negative' must be a string or a list of strings, found 5"),
        ("negative", ["n", ["m", None]], "'negative' must be a string or a list of strings, found ['m', None]"),
        ("answers", [["a"], [1]], "answers must be a list of strings, found [1]"),
        ("title", ["t", 5], "'title' must be a string, found 5"),
    ],
)
def test_a_column_that_one_row_has_otherwise_is_still_read(
    column: str, values: Sequence[Any], message: str, tmp_path: Path
) -> None:
    records = [{"query": f"q{at}", "passage": f"p{at}", column: value} for at, value in enumerate(values)]
    path = lines(tmp_path / "pairs.jsonl", records)
    reader = build(Reader, recognise(str(path)).reader)
    bad = BadRows(str(path))
    list(reader.read(reader.sources()[0], bad))
    assert [str(row) for row in bad.kept] == [f"{path}:2: {message}"]


def test_labels_beside_negatives_are_remarked_on(tmp_path: Path, capsys: Any) -> None:
    records = [{"query": f"q{at}", "positive": f"p{at}", "negative": "n", "label": 0} for at in range(3)]
    assert first_config(str(lines(tmp_path / "pairs.jsonl", records)))
    output = " ".join(capsys.readouterr().err.split())
    assert "the column 'label' is not read beside negatives: each positive counts as relevant" in output


def test_a_title_that_is_the_positive_is_no_title_of_it(tmp_path: Path) -> None:
    """Passages would hold it twice."""
    [passage] = [
        row
        for row in rows_of(recognise(str(table(tmp_path / "mine.csv", [["query", "title"], ["q", "a title"]]))))
        if row.table == "passages"
    ]
    assert (passage.values["title"], passage.values["text"]) == ("", "a title")


def test_splits_of_a_column_are_those_of_the_whole_file(tmp_path: Path) -> None:
    rows = [[f"q{n}", f"p{n}", "train" if n < 1200 else "test"] for n in range(1300)]
    path = table(tmp_path / "mine.csv", [["query", "positive", "split"], *rows])
    assert recognise(str(path)).splits == ["test", "train"]


def test_columns_that_only_another_split_has_are_read(tmp_path: Path) -> None:
    lines(tmp_path / "train.jsonl", [{"query": q, "positive": p} for q, p, _ in PAIRS])
    further = {"title": "t", "negatives": ["x", "y"], "answers": ["a"]}
    lines(tmp_path / "test.jsonl", [{"query": q, "positive": [p], **further} for q, p, _ in PAIRS])
    rows = rows_of(recognise(str(tmp_path)))
    assert counted(rows) == {"queries": 10, "passages": 20, "qrels": 10, "negatives": 10}
    assert {str(row.values["answers"]) for row in rows if row.table == "queries"} == {"None", "['a']"}


@pytest.mark.parametrize("judged", ["train", "test"])
def test_judgments_of_some_splits_alone_are_refused(judged: str, tmp_path: Path) -> None:
    """Read as pairs without judgments, all of them were relevant; read as judged pairs, those of the others are bad."""
    for split in ("train", "test"):
        label = {"label": 0} if split == judged else {}
        lines(tmp_path / f"{split}.jsonl", [{"query": q, "positive": p, **label} for q, p, _ in PAIRS])
    other = {"train": "test", "test": "train"}[judged]
    with pytest.raises(DataError, match=f"'{judged}' have judgments in 'label', and those of '{other}'"):
        recognise(str(tmp_path))


def test_the_threshold_of_labels_regards_all_splits(tmp_path: Path) -> None:
    for split, labels in (("train", [0, 1]), ("test", [0.2, 0.9])):
        lines(tmp_path / f"{split}.jsonl", [{"query": "q", "positive": f"p{x}", "label": x} for x in labels])
    assert recognise(str(tmp_path)).reader["columns"]["relevant_from"] == 0.5


def test_triples_of_ids_beside_a_collection_are_read(tmp_path: Path) -> None:
    (tmp_path / "collection.tsv").write_text("1\tpassage\n2\tother\n")
    (tmp_path / "queries.train.tsv").write_text("q\tquery\n")
    (tmp_path / "qrels.train.tsv").write_text("q\t0\t1\t1\n")
    (tmp_path / "triples.train.tsv").write_text("q\t1\t2\n")
    (tmp_path / "triples.train.small.tsv").write_text("query\tpassage\tother\n")
    recognised = recognise(str(tmp_path))
    assert recognised.what == "MS MARCO's files, triples of ids for train"
    assert counted(rows_of(recognised)) == {"passages": 2, "queries": 1, "qrels": 1, "negatives": 1}


def test_no_file_of_dpr_is_left_out(tmp_path: Path) -> None:
    context = {"passage_id": "1", "title": "of it", "text": "passage"}
    record = {"question": "q", "answers": [], "positive_ctxs": [context], "hard_negative_ctxs": []}
    (tmp_path / "train-0.json").write_text(json.dumps([record]))
    (tmp_path / "test.qa.csv").write_text("question\t['answer']\n")
    assert counted(rows_of(recognise(str(tmp_path)))) == {"passages": 1, "queries": 2, "qrels": 1}
    (tmp_path / "train-1.json").write_text(json.dumps([record]))
    with pytest.raises(DataError, match=r"several files of DPR for one split: train-0.json, train-1.json. Join them"):
        recognise(str(tmp_path))


def test_labels_that_are_all_below_the_threshold_are_remarked_on(tmp_path: Path) -> None:
    path = lines(tmp_path / "mine.jsonl", [{"query": q, "positive": p, "score": 0.3} for q, p, _ in PAIRS])
    assert recognise(str(path)).remark.endswith(
        "pairs are relevant from score 0.5 on, and no label of the first pairs is above 0.3: set "
        "data.reader.columns.relevant_from"
    )


def class_labels(*names: str) -> Any:
    datasets = pytest.importorskip("datasets")
    kinds = datasets.ClassLabel(names=list(names))
    features = {"question": datasets.Value("string"), "sentence": datasets.Value("string"), "label": kinds}
    rows = [{"question": q, "sentence": p, "label": 0} for q, p, _ in PAIRS]
    return datasets.Dataset.from_list(rows, features=datasets.Features(features))


def test_names_of_class_labels_are_said(tmp_path: Path) -> None:
    class_labels("not_entailment", "entailment").save_to_disk(str(tmp_path / "saved"))
    assert "relevant from 1 (0 'not_entailment', 1 'entailment')" in recognise(str(tmp_path / "saved")).what


@pytest.mark.parametrize("where", ["saved", "parquet", "memory"])
def test_class_0_of_relevant_pairs_is_refused(where: str, tmp_path: Path) -> None:
    """Of QNLI and SNLI 0 is what fits; taken for a judgment, each pair would have the opposite."""
    labelled = class_labels("entailment", "not_entailment")
    path = tmp_path / "qnli.parquet"
    labelled.to_parquet(path) if where == "parquet" else labelled.save_to_disk(str(path))
    with pytest.raises(DataError, match="0 in the column 'label' means 'entailment', and for raydr 0 is not relevant"):
        place_pairs(labelled, str(tmp_path)) if where == "memory" else recognise(str(path))


@pytest.mark.parametrize("name", ["is_duplicate", "is_relevant", "relevant", "is_selected", "gold_label"])
def test_judgments_have_many_names(name: str, tmp_path: Path) -> None:
    rows = [["id", "qid1", "question1", "question2", name], *[[n, n, q, p, n % 2] for n, (q, p, _) in enumerate(PAIRS)]]
    assert recognise(str(table(tmp_path / "quora.csv", rows))).reader["columns"] == {
        "query": "question1", "positive": "question2", "query_id": "id", "label": name, "relevant_from": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("column", "values"), [("ok", [0, 1]), ("ok", ["True", "False"]), ("ok", [True, False]), ("esci_label", ["E", "I"])]
)
def test_columns_that_may_be_judgments_are_not_left_out_silently(column: str, values: Any, tmp_path: Path) -> None:
    rows = [{"query": q, "positive": p, column: values[n % 2]} for n, (q, p, _) in enumerate(PAIRS)]
    remark = recognise(str(lines(tmp_path / "mine.jsonl", rows))).remark
    assert f"the column {column!r} is not read, and each pair counts as relevant. If it judges the pairs" in remark
    assert not recognise(str(lines(tmp_path / "all.jsonl", [row | {column: values[0]} for row in rows]))).remark


def test_a_list_of_judgments_is_refused(tmp_path: Path) -> None:
    rows = [{"query": q, "positive": [p, "other"], "labels": [1, 0]} for q, p, _ in PAIRS]
    with pytest.raises(DataError, match=r"'labels' holds lists such as \[1, 0\], and a row has one judgment"):
        recognise(str(lines(tmp_path / "mine.jsonl", rows)))


@pytest.mark.parametrize("others", [{"output": [{"answer": "a"}]}, {"n": 3}, {"docid": "d"}])
def test_ids_are_no_passages(others: dict[str, Any], tmp_path: Path) -> None:
    """Such are the files of KILT, and queries alone."""
    rows = [{"id": f"k{n}", "input": q, **others} for n, (q, _, _) in enumerate(PAIRS)]
    with pytest.raises(DataError, match="the positives"):
        recognise(str(lines(tmp_path / "nq-train-kilt.jsonl", rows)))


def test_queries_of_ms_marco_without_judgments_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "collection.tsv").write_text("1\tpassage\n")
    for split in ("train", "dev.small", "eval.small"):
        (tmp_path / f"queries.{split}.tsv").write_text(f"{split}\tquery\n")
    for split in ("train", "dev.small"):
        (tmp_path / f"qrels.{split}.tsv").write_text(f"{split}\t0\t1\t1\n")
    assert sorted(recognise(str(tmp_path)).splits) == ["dev.small", "train"]
    assert counted(rows_of(recognise(str(tmp_path)))) == {"passages": 1, "queries": 2, "qrels": 2}


def test_dpr_as_json_lines(tmp_path: Path) -> None:
    records = [{"question": q, "answers": [], "positive_ctxs": [{"title": "", "text": p}]} for q, p, _ in PAIRS]
    number = len(PAIRS)
    read = rows_of(recognise(str(lines(tmp_path / "nq-train.jsonl", records))))
    assert counted(read) == {"queries": number, "passages": number, "qrels": number}
