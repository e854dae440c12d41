"""Folders as clones of the hub have them: files in folders, Parquet, judgments of MTEB, pointers of Git LFS."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydr.component import build
from raydr.data.readers.base import Reader, Row
from raydr.data.recognition import recognise
from raydr.data.rows import BadRows
from raydr.errors import DataError

PAIRS = [{"anchor": f"question {n}", "positive": f"answer {n}"} for n in range(6)]
QRELS = [{"query-id": f"q{n}", "corpus-id": f"d{n}", "score": 1 + n % 2} for n in range(6)]


def put(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".tsv":
        lines = ["\t".join(rows[0]), *("\t".join(map(str, row.values())) for row in rows)]
        path.write_text("".join(f"{line}\n" for line in lines))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def rows_of(folder: Path) -> list[Row]:
    reader = build(Reader, recognise(str(folder)).reader)
    bad = BadRows("all")
    rows = [row for source in reader.sources() for row in reader.read(source, bad)]
    assert not bad.count, bad.kept[0]
    return rows


def contents(folder: Path) -> dict[str, set[tuple[Any, ...]]]:
    """The values of all rows by table, with their splits."""
    rows = rows_of(folder)
    return {
        table: {(row.split, *map(repr, row.values.values())) for row in rows if row.table == table}
        for table in ("passages", "queries", "qrels")
    }


@pytest.mark.parametrize("inner", ["data/", "triplet/", "default/train/", "train/"])
def test_files_in_a_folder_of_a_clone_are_those_of_the_folder(tmp_path, inner):
    put(tmp_path / f"{inner}train-00000-of-00002.parquet", PAIRS[:3])
    put(tmp_path / f"{inner}train-00001-of-00002.parquet", PAIRS[3:])
    (tmp_path / "README.md").write_text("# pairs\n")
    (tmp_path / "dataset_infos.json").write_text("{}")
    assert recognise(str(tmp_path)).splits == ["train"]
    assert sum(row.table == "qrels" for row in rows_of(tmp_path)) == len(PAIRS)


def test_a_folder_for_each_split_and_shards_keep_their_splits(tmp_path):
    for name in ("train/0000", "test/0000", "test/0001"):
        put(tmp_path / f"{name}.parquet", PAIRS)
    assert recognise(str(tmp_path)).reader["files"] == {
        "train": ["train/0000.parquet"],
        "test": ["test/0000.parquet", "test/0001.parquet"],
    }
    for name in ("train", "test", "test_human"):
        put(tmp_path / f"clone/data/{name}-00000-of-00001.parquet", PAIRS)
    assert recognise(str(tmp_path / "clone")).splits == ["train", "test", "test_human"]


def test_several_configurations_are_refused_by_their_names(tmp_path):
    for name in ("pair", "triplet"):
        put(tmp_path / name / "train-00000-of-00001.parquet", PAIRS)
    with pytest.raises(DataError, match=r"several folders of data: pair, triplet\. Prepare one, such as .*/pair$"):
        recognise(str(tmp_path))


@pytest.mark.parametrize(
    ("corpus", "queries", "qrels"),
    [
        ("corpus/corpus-00000-of-00001.parquet", "queries/queries-00000-of-00001.parquet", "qrels/test.tsv"),
        ("corpus/train-00000-of-00001.parquet", "queries/train-00000-of-00001.parquet", "qrels/test.parquet"),
        ("corpus/c.parquet", "queries/q.parquet", "data/test-00000-of-00001.parquet"),
        ("corpus.jsonl", "queries.jsonl", "qrels/test.jsonl"),
    ],
)
def test_clones_of_beir_and_mteb_hold_the_same_as_beir(tmp_path, corpus, queries, qrels):
    passages = [{"_id": f"d{n}", "title": f"T{n}", "text": row["positive"]} for n, row in enumerate(PAIRS)]
    asked = [{"_id": f"q{n}", "text": row["anchor"]} for n, row in enumerate(PAIRS)]
    for folder, names in (("clone", (corpus, queries, qrels)), ("beir", ("corpus.jsonl", "queries.jsonl"))):
        for name, rows in zip(names, (passages, asked, QRELS), strict=False):
            put(tmp_path / folder / name, rows)
    with pytest.raises(DataError, match="no judgments: put a file for each split into .*/beir/qrels"):
        recognise(str(tmp_path / "beir"))
    put(tmp_path / "beir/qrels/test.tsv", QRELS)
    assert recognise(str(tmp_path / "clone")).splits == ["test"]
    assert contents(tmp_path / "clone") == contents(tmp_path / "beir")


def test_judgments_without_scores_are_positives_and_several_files_of_a_corpus_are_all_read(tmp_path):
    for n in range(2):
        put(tmp_path / f"corpus/corpus-0000{n}-of-00002.parquet", [{"_id": f"d{n}", "text": f"answer {n}"}])
    put(tmp_path / "queries/train-00000-of-00001.parquet", [{"_id": "q0", "text": "question"}])
    put(tmp_path / "qrels/train-00000-of-00001.parquet", [{"query-id": "q0", "corpus-id": "d1"}])
    assert recognise(str(tmp_path)).num_queries == 1
    rows = rows_of(tmp_path)
    assert [row.values["passage_id"] for row in rows if row.table == "passages"] == ["d0", "d1"]
    assert [row.values["relevance"] for row in rows if row.table == "qrels"] == [1]


@pytest.mark.parametrize("name", ["train.parquet", "train.jsonl.gz", "train.jsonl", "train.csv"])
def test_a_pointer_of_git_lfs_is_named(tmp_path, name):
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12\n")
    with pytest.raises(DataError, match=r"is a pointer of Git LFS to a file that is not here\. Fetch it: git lfs pull"):
        recognise(str(tmp_path))
