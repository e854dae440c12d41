"""``raydr clean``: kept and dropped rows beside the file, in its shape."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from api.made_pairs import SMALL, make_pairs
from training.harness import AboveMedian
from typer.testing import CliRunner

import raydr
from raydr.data.pairs import PairColumns, pair_ids
from raydr.data.pairs_in_memory import pair_table
from raydr.data.readers.pairs import PairsReader
from raydr.errors import ConfigError
from raydr.verbs.app import app
from raydr.verbs.clean import P_WRONG, _clean_file

Row = dict[str, Any]


def read_csv(path: Path) -> list[Row]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def write_csv(path: Path, rows: list[Row]) -> None:
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)


def read_excel(path: Path) -> list[Row]:
    content = path.read_bytes()
    assert content.startswith(b"\xef\xbb\xbfQuestion,")
    assert content.count(b"\n") == content.count(b"\r\n") == content.count(b"\r")
    return list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline="")))


def write_excel(path: Path, rows: list[Row]) -> None:
    write_csv(path, rows)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())


def read_lines(path: Path) -> list[Row]:
    return [json.loads(line) for line in gzip.open(path, "rt")]


def write_lines(path: Path, rows: list[Row]) -> None:
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


@pytest.mark.parametrize(
    ("name", "write", "read"),
    [
        ("mine.csv", write_csv, read_csv),
        ("excel.csv", write_excel, read_excel),
        ("mine.jsonl.gz", write_lines, read_lines),
        ("mine.json", lambda path, rows: path.write_text(json.dumps(rows)), lambda path: json.loads(path.read_text())),
        (
            "mine.parquet",
            lambda path, rows: pq.write_table(pair_table(rows, "rows"), path),
            lambda path: pq.read_table(path).to_pylist(),
        ),
    ],
)
def test_a_file_is_cleaned_in_its_own_shape(
    name: str,
    write: Callable[[Path, list[Row]], None],
    read: Callable[[Path], list[Row]],
    tiny_checkpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"Question": query, "Answer": text, "more": f"é{at}"} for at, (query, text) in enumerate(make_pairs(40))]
    write(tmp_path / name, rows)
    judge = {"name": "npc", "margins": "model", "num_random": 20, "detector": AboveMedian().name}
    settings = SMALL | {"judge.judges": [judge], "model.checkpoint": tiny_checkpoint, "tracking.enabled": False}
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    result = CliRunner().invoke(app, ["clean", name, *options])
    assert result.exit_code == 0, result.output
    stem, _, end = name.partition(".")
    kept, dropped = (read(tmp_path / f"{stem}.{word}.{end}") for word in ("kept", "dropped"))
    assert "warning" not in result.stderr
    assert len(dropped) == 20
    assert {row.pop("p_wrong") for row in dropped}
    assert [row for row in rows if row not in dropped] == kept
    # The same command writes the same, and nobody's file is overwritten.
    assert CliRunner().invoke(app, ["clean", name, *options]).exit_code == 0
    mine = tmp_path / f"{stem}.kept.{end}"
    mine.write_bytes(b"mine")
    refused = CliRunner().invoke(app, ["clean", name, *options])
    assert refused.exit_code == 2
    assert "exists already and has other content" in " ".join(refused.output.split())
    assert mine.read_bytes() == b"mine"
    assert not list(tmp_path.glob("*.tmp-*"))
    assert "kept: 20 rows" in result.output
    assert not list(tmp_path.glob("*.yaml"))


@pytest.mark.parametrize(("end", "separator"), [("csv", ","), ("tsv", "\t"), ("parquet", ""), ("jsonl", "")])
def test_without_flags_the_file_of_dropped_rows_has_the_columns_and_no_row(
    end: str, separator: str, tiny_checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"Question": query, "Answer": text} for query, text in make_pairs(20)]
    if end == "parquet":
        pq.write_table(pair_table(rows, "rows"), "mine.parquet")
    else:
        header = [separator.join(rows[0])] if separator else []
        lines = [separator.join(row.values()) if separator else json.dumps(row) for row in rows]
        Path(f"mine.{end}").write_text("\n".join([*header, *lines]) + "\n")
    monkeypatch.setattr(AboveMedian, "detect", lambda self, values_N, *_: self.keep_all(values_N, None, "none"))
    judge = {"name": "npc", "margins": "model", "num_random": 5, "detector": AboveMedian().name}
    settings = SMALL | {"judge.judges": [judge], "model.checkpoint": tiny_checkpoint, "tracking.enabled": False}
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    result = CliRunner().invoke(app, ["clean", f"mine.{end}", *options])
    assert result.exit_code == 0, result.output
    dropped = Path(f"mine.dropped.{end}")
    if end == "parquet":
        table = pq.read_table(dropped)
        assert (table.num_rows, table.column_names) == (0, ["Question", "Answer", "p_wrong"])
    else:
        assert dropped.read_text() == (separator.join(["Question", "Answer", "p_wrong"]) + "\n" if separator else "")


def test_what_is_no_file_of_pairs_is_refused(beir_folder: Path, tmp_path: Path) -> None:
    raw = {"data": {"reader": {"name": "beir", "path": str(beir_folder)}}, "workdir": str(tmp_path / "w")}
    with pytest.raises(ConfigError, match="data.reader is 'beir': use raydr judge"):
        raydr.clean(raw)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(raw))
    assert CliRunner().invoke(app, ["clean", str(tmp_path / "run.yaml")]).exit_code == 2


def test_rows_that_cannot_be_read_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("query,positive\nq,a\nbroken\nr,b\n")
    noise = SimpleNamespace(pair_ids=[("q", "a")], table={P_WRONG: [0.875], "flagged": [True]})
    columns = PairColumns(query_id="query", passage_id="positive")
    _clean_file(str(path), noise, PairsReader(files={"train": [str(path)]}, columns=columns), "train")
    printed = "".join(capsys.readouterr())
    # Held-out pairs and pairs with the label 0 are in the file, and nobody has judged them.
    assert "kept without a verdict: 1 row" in printed
    assert "in neither: 1 row that cannot be read, the first is" in printed
    assert "mine.csv:3: expected 2 columns" in printed.replace("\n", "")


@pytest.mark.parametrize("end", ["csv", "parquet"])
def test_dropped_rows_that_are_cleaned_again_have_each_column_once(end: str, tmp_path: Path) -> None:
    rows = [{"Question": "q", "Answer": "a", P_WRONG: 0.75}]
    path = tmp_path / f"mine.{end}"
    if end == "csv":
        write_csv(path, rows)
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    noise = SimpleNamespace(pair_ids=[("q", "a")], table={P_WRONG: [0.875], "flagged": [True]})
    columns = PairColumns(query="Question", query_id="Question", positive="Answer", passage_id="Answer")
    reader = PairsReader(files={"train": [str(path)]}, columns=columns)
    _clean_file(str(path), noise, reader, "train")
    kept, dropped = (tmp_path / f"mine.{word}.{end}" for word in ("kept", "dropped"))
    read = read_csv if end == "csv" else lambda place: pq.read_table(place).to_pylist()
    header = dropped.read_text().split()[0].split(",") if end == "csv" else pq.read_schema(dropped).names
    assert header == ["Question", "Answer", P_WRONG]
    assert [row[P_WRONG] for row in read(dropped)] == ["0.875" if end == "csv" else 0.875]
    assert read(kept) == []


@pytest.mark.parametrize("split", ["training", "validation"])
def test_with_a_column_of_splits_the_rows_of_other_splits_are_kept(
    split: str, tiny_checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    splits = ["training"] * 30 + ["validation"] * 10
    write_csv(
        Path("mine.csv"),
        [{"query": q, "positive": p, "split": name} for (q, p), name in zip(make_pairs(40), splits, strict=True)],
    )
    judge = {"name": "npc", "margins": "model", "num_random": 5, "detector": AboveMedian().name}
    settings = SMALL | {"judge.judges": [judge], "model.checkpoint": tiny_checkpoint, "tracking.enabled": False}
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    named = [] if split == "training" else ["--split", split]
    result = CliRunner().invoke(app, ["clean", "mine.csv", *named, *options])
    assert result.exit_code == 0, result.output
    dropped = [row["split"] for row in read_csv(Path("mine.dropped.csv"))]
    assert dropped == [split] * (splits.count(split) // 2)
    assert len(read_csv(Path("mine.kept.csv"))) == 40 - len(dropped)


def test_texts_that_json_alone_can_hold_are_written_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    lines = [json.dumps({"q": word, "p": "a", "cut": "é\ud83d"}) for word in ("x", "y")]
    path.write_text("\n".join(lines) + "\n")
    noise = SimpleNamespace(pair_ids=[("x", "a")], table={P_WRONG: [0.5], "flagged": [True]})
    columns = PairColumns(query="q", query_id="q", positive="p", passage_id="p")
    _clean_file(str(path), noise, PairsReader(files={"train": [str(path)]}, columns=columns), "train")
    assert [json.loads(line) for line in (tmp_path / "mine.kept.jsonl").open()] == [json.loads(lines[1])]


def test_a_row_whose_other_positives_are_blank_is_dropped_and_an_unusable_row_stays(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    rows = [{"q": "x", "p": ["a", ""]}, {"q": "y", "p": ["b", " "]}, {"q": "z", "p": []}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = PairColumns(query="q", query_id="q", positive="p")
    noise = SimpleNamespace(pair_ids=pair_ids(rows[0], "columns", columns), table={P_WRONG: [0.5], "flagged": [True]})
    _clean_file(str(path), noise, PairsReader(files={"train": [str(path)]}, columns=columns), "train")
    assert [json.loads(line) for line in (tmp_path / "mine.kept.jsonl").open()] == rows[1:]
    [dropped] = [json.loads(line) for line in (tmp_path / "mine.dropped.jsonl").open()]
    assert dropped == rows[0] | {P_WRONG: 0.5}
