"""Rows that are numbered through several files, and artefacts that go to other processes."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
from made_artefacts import make_corpus

from raydr.data.parts import RowParts
from raydr.data.tables import write_arrow

SIZES = [3, 0, 2, 4]


def made(folder: Path) -> tuple[RowParts, list[str]]:
    values = [f"v{at}" for at in range(sum(SIZES))]
    ends = np.cumsum(SIZES)
    for at, (size, end) in enumerate(zip(SIZES, ends, strict=True)):
        write_arrow(pa.table({"value": pa.array(values[end - size : end], pa.string())}), str(folder / f"{at}.arrow"))
    names = [f"{at}.arrow" for at in range(len(SIZES))]
    return RowParts(names, SIZES, lambda name: str(folder / name)), values


def test_values_come_in_the_order_asked_for_over_all_parts(tmp_path: Path) -> None:
    parts, values = made(tmp_path)
    rows = np.random.default_rng(0).integers(len(values), size=50)
    assert len(parts) == len(values)
    assert parts.column("value", rows) == [values[row] for row in rows]
    assert parts.column("value", rows[:0]) == []
    assert [parts.row(row)["value"] for row in range(len(values))] == values


def test_each_row_is_named_once_in_the_part_that_has_it(tmp_path: Path) -> None:
    parts, _ = made(tmp_path)
    rows = np.array([8, 0, 3, 2, 8])
    by_part = {part: (places.tolist(), local.tolist()) for part, places, local in parts.by_part(rows)}
    assert by_part == {0: ([1, 3], [0, 2]), 2: ([2], [0]), 3: ([0, 4], [3, 3])}


def test_an_open_corpus_is_opened_anew_where_it_goes(tmp_path: Path) -> None:
    texts = {"a": "one", "b": "two"}
    rows = [{"passage_id": name, "title": "", "text": text} for name, text in texts.items()]
    corpus = make_corpus(tmp_path / "corpus", rows, part_rows=1)
    assert corpus.texts(corpus.rows_of(["b"])).texts == ["two"]
    again = pickle.loads(pickle.dumps(corpus))
    assert again.texts(again.rows_of(["a", "b"])).texts == ["one", "two"]
    assert again.fingerprint == corpus.fingerprint
