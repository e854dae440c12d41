"""One large file read by many workers: the corpus is the same, bad rows and line numbers included."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_stage import make

from raydr.artefacts.dataset import prepare_corpus
from raydr.artefacts.sources import QUARANTINE, find_sources
from raydr.data import ranges as file_ranges
from raydr.data.config import DataConfig
from raydr.data.corpus import Corpus
from raydr.data.lines import read_lines
from raydr.data.ranges import ALL_LINES, LineRange
from raydr.data.rows import BadRows
from raydr.distributed.pool import Calls, Function, ThisProcess
from raydr.store.artifact import Artifact

NUM_PASSAGES = 100


class Counting(ThisProcess):
    """Counts the ranges that were read."""

    def __init__(self) -> None:
        super().__init__()
        self.num_ranges = 0

    def stream(self, function: Function, calls: Calls) -> Any:
        self.num_ranges = len(calls)
        return super().stream(function, calls)


def texts() -> list[str]:
    return [f"text {at} {'long ' * (at % 7)}".strip() for at in range(NUM_PASSAGES)]


def beir(folder: Path) -> dict[str, Any]:
    """Blank and broken lines, an id twice, a byte order mark, line ends of Windows, and no line end at the end."""
    lines = [json.dumps({"_id": f"p{at}", "text": text}) for at, text in enumerate(texts())]
    lines[3:3] = ["", "{broken", lines[0]]
    lines.insert(60, '["an array", "in the middle"]')
    (folder / "corpus.jsonl").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "a query"}\n')
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("q\tp1\t1\n")
    return {"name": "beir", "path": str(folder)}


def hub(folder: Path) -> dict[str, Any]:
    """Row groups that do not begin with parts, an empty text, and an empty group."""
    (folder / "corpus").mkdir()
    rows = [{"_id": f"p{at}", "title": "", "text": text} for at, text in enumerate(texts())]
    rows.insert(30, {"_id": "p-empty", "title": "", "text": ""})
    table = pa.Table.from_pylist(rows)
    with pq.ParquetWriter(folder / "corpus" / "corpus-00000-of-00001.parquet", table.schema) as file:
        for first, num_rows in ((0, 13), (13, 0), (13, 1), (14, 50), (64, 37)):
            file.write_table(table.slice(first, num_rows))
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "a query"}\n')
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("q\tp1\t1\n")
    return {"name": "beir", "path": str(folder), "corpus": "corpus"}


def msmarco(folder: Path) -> dict[str, Any]:
    rows = [f'{at}\t{text} with a " quote' for at, text in enumerate(texts())]
    rows.insert(30, "too\tmany\tcolumns")
    (folder / "collection.tsv").write_text("\n".join(rows) + "\n")
    (folder / "queries.train.tsv").write_text("q\ta query\n")
    (folder / "qrels.train.tsv").write_text("q\t0\t1\t1\n")
    return {"name": "msmarco", "path": str(folder), "splits": ["train"]}


def dpr(folder: Path, text: str = 'a "quoted" text') -> dict[str, Any]:
    with (folder / "psgs.tsv").open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(["id", "text", "title"])
        writer.writerows(
            [at, f"{passage} {text if at % 3 == 0 else ''}", f"title {at}"] for at, passage in enumerate(texts())
        )
    (folder / "nq.csv").write_text("who\t['me']\n")
    return {"name": "dpr", "path": str(folder), "passages": "psgs.tsv", "retriever": {"test": "nq.csv"}}


def dpr_over_lines(folder: Path) -> dict[str, Any]:
    return dpr(folder, 'over\ntwo "lines"')


def prepare(reader: dict[str, Any], place: Path, pool: Counting) -> Artifact:
    data = DataConfig.model_validate({"reader": reader, "part_rows": 8, "max_bad_rows": 10})
    how: dict[str, Any] = {"reader": data.reader, "sources": find_sources(data.reader), "data": data, "pool": pool}
    return make(place, "corpus", prepare_corpus, **how)


@pytest.mark.invariant
@pytest.mark.parametrize("write", [beir, hub, msmarco, dpr, dpr_over_lines])
def test_a_corpus_is_the_same_however_many_workers_read_its_file(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    reader = write(tmp_path / "in")
    whole = prepare(reader, tmp_path / "whole", Counting())
    assert len(Corpus(whole)) == NUM_PASSAGES
    for range_bytes, noted_bytes in ((1000, 1000), (1200, 100), (300, 20)):
        monkeypatch.setattr(file_ranges, "RANGE_BYTES", range_bytes)
        monkeypatch.setattr(file_ranges, "NOTED_BYTES", noted_bytes)
        pool = Counting()
        divided = prepare(reader, tmp_path / f"{range_bytes}", pool)
        # A record that spans lines may span ranges.
        assert (pool.num_ranges > 1) == (write is not dpr_over_lines)
        assert divided.manifest.parts == whole.manifest.parts
        assert divided.info == whole.info
        bad = [Path(made.folder.path(QUARANTINE)) for made in (whole, divided)]
        assert [file.exists() for file in bad] == [write in (beir, hub, msmarco)] * 2
        if bad[0].exists():
            assert bad[0].read_bytes() == bad[1].read_bytes()


@pytest.mark.invariant
@pytest.mark.parametrize("noted_bytes", [1, 3, 7])
@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
def test_each_line_is_in_one_range(noted_bytes: int, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join("x" * (at * at % 11) for at in range(23)) + end)
    monkeypatch.setattr(file_ranges, "NOTED_BYTES", noted_bytes)
    monkeypatch.setattr(file_ranges, "RANGE_BYTES", 3 * noted_bytes)
    starts = file_ranges.piece_starts(str(path))
    counts = [file_ranges.count_lines(str(path), start, "lines") for start in starts]
    ranges = file_ranges.divide_lines(counts, block=2, division="lines")
    assert len(ranges) > 4
    assert all(line_range.first % 2 == 1 for line_range in ranges)

    def lines(of: LineRange) -> list[tuple[int, str]]:
        return list(read_lines(str(path), BadRows(str(path)), of))

    assert [line for line_range in ranges for line in lines(line_range)] == lines(ALL_LINES)


def test_a_compressed_file_is_read_by_one_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_ranges, "RANGE_BYTES", 1)
    (tmp_path / "a.gz").write_bytes(b"xx")
    assert file_ranges.piece_starts(str(tmp_path / "a.gz")) == []
