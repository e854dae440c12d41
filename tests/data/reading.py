"""What a reader makes of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raydr.data.readers.base import Reader, Row
from raydr.data.rows import BadRows


def read_all(reader: Reader) -> tuple[list[Row], list[str]]:
    """All rows, and what is wrong with the others."""
    rows: list[Row] = []
    bad: list[str] = []
    for source in reader.sources():
        bad_rows = BadRows(Path(source.path).name)
        rows.extend(reader.read(source, bad_rows))
        bad.extend(map(str, bad_rows.kept))
    return rows, bad


def values_of(rows: list[Row], table: str, split: str | None = None) -> list[dict[str, Any]]:
    """Those of one table, and of one split if that is given."""
    return [row.values for row in rows if row.table == table and split in (None, row.split)]
