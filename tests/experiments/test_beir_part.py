"""A part of a BEIR folder: which queries, which articles."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from experiments.beir_part import write_part
from raydr.errors import DataError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "qrels").mkdir(parents=True)
    with gzip.open(folder / "corpus.jsonl.gz", "wt") as file:
        file.writelines(
            json.dumps({"_id": f"art{article}#{place}", "text": f"{article} {place}"}) + "\n"
            for article in range(9)
            for place in range(3)
        )
    queries = [f"sq-{at}" for at in range(3)] + [f"nq-{at}" for at in range(3)] + ["other-0"]
    for name in ("queries", "answers"):
        lines = [json.dumps({"_id": query, "text": query, "answers": [query]}) for query in queries]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    head = "query-id\tcorpus-id\tscore\n"
    (folder / "qrels" / "train.tsv").write_text(head + "sq-0\tart0#1\t1\nother-0\tart5#0\t1\nnq-0\tart1#2\t1\n")
    (folder / "qrels" / "test.tsv").write_text(head + "sq-1\tart2#0\t1\n")
    return folder


def ids(file: Path) -> list[str]:
    return [json.loads(line)["_id"] for line in file.read_text().splitlines()]


def test_queries_of_a_kind_and_whole_articles(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "part"
    counts = write_part(source, target, ["sq", "nq"], num_passages=12, seed=1)
    assert counts == {"train": 2, "test": 1, "passages": 12}
    passages = ids(target / "corpus.jsonl")
    assert {"art0#0", "art0#1", "art0#2", "art1#2", "art2#0"} <= set(passages)
    assert all(passages.count(f"{passage.split('#')[0]}#{place}") == 1 for passage in passages for place in range(3))
    assert ids(target / "queries.jsonl") == ids(target / "answers.jsonl") == ["sq-0", "sq-1", "nq-0"]
    assert (target / "qrels" / "train.tsv").read_text().splitlines()[1:] == ["sq-0\tart0#1\t1", "nq-0\tart1#2\t1"]
    other = tmp_path / "other"
    write_part(source, other, ["sq", "nq"], num_passages=12, seed=1)
    assert ids(other / "corpus.jsonl") == passages


def test_what_cannot_be_written_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="begins with one of boolq"):
        write_part(source, tmp_path / "none", ["boolq"], 5, seed=0)
    with pytest.raises(DataError, match="exists already"):
        write_part(source, source, ["sq"], 5, seed=0)
