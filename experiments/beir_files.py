"""Reading and writing the files of BEIR folders."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

#: Query id, passage id and relevance.
Judgment = tuple[str, str, str]


def read_rows(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``NAME.jsonl``, or of ``NAME.jsonl.gz``."""
    plain = folder / f"{name}.jsonl"
    with plain.open(encoding="utf-8") if plain.exists() else gzip.open(f"{plain}.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def write_rows(folder: Path, name: str, rows: Iterable[dict[str, Any]]) -> int:
    """Write ``NAME.jsonl``; return the number of rows."""
    count = 0
    with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def read_qrels(folder: Path) -> dict[str, list[Judgment]]:
    """Read the judgments by split."""
    judgments: dict[str, list[Judgment]] = {}
    for file in sorted((folder / "qrels").glob("*.tsv")):
        rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()[1:]]
        judgments[file.stem] = [(row[0], row[1], row[2]) for row in rows]
    return judgments


def write_qrels(folder: Path, split: str, rows: Iterable[Judgment]) -> None:
    """Write the judgments of a split."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    lines = ["query-id\tcorpus-id\tscore", *("\t".join(row) for row in rows)]
    (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
