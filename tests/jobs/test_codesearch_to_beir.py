"""The converter of code-search files: what it writes is what raydr's BEIR reader reads."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

from raydr.data.readers.beir import BeirReader
from raydr.data.rows import BadRows

SCRIPT = Path(__file__).parents[2] / "jobs" / "codesearch_to_beir.py"
SNIPPETS = [
    {"id": "7_0", "description": "Sort a list", "code": "sorted(x)\nprint(x)", "language": "python"},
    {"id": 8, "description": "", "code": "a\tb", "language": "python"},
]


def convert(folder: Path, test: list[dict[str, object]]) -> subprocess.CompletedProcess[str]:
    with gzip.open(folder / "s.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in SNIPPETS)
    (folder / "dev.jsonl").write_text(json.dumps({"query": "order list", "relevant_ids": ["7_0", 8]}) + "\n")
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in test))
    files = {"snippets": "s.jsonl.gz", "dev": "dev.jsonl", "test": "test.jsonl", "output": "out"}
    options = [f"--{name}={folder / file}" for name, file in files.items()]
    return subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, check=False)


def test_the_reader_reads_what_is_written(tmp_path: Path) -> None:
    done = convert(tmp_path, [{"query": "how to sort", "relevant_ids": ["7_0"]}])
    assert done.returncode == 0, done.stderr
    assert "2 passages, 1 train judgments, 2 dev judgments, 1 test judgments" in done.stdout
    reader = BeirReader(path=str(tmp_path / "out"), splits=["train", "dev", "test"])
    rows = [row for source in reader.sources() for row in reader.read(source, BadRows(source.path))]
    passages = {row.values["passage_id"]: row.values["text"] for row in rows if row.table == "passages"}
    assert passages == {"7_0": "sorted(x)\nprint(x)", "8": "a\tb"}
    judged = {(row.split, row.values["passage_id"]) for row in rows if row.table == "qrels"}
    assert judged == {("train", "7_0"), ("dev", "7_0"), ("dev", "8"), ("test", "7_0")}
    assert {row.values["text"] for row in rows if row.split == "train" and row.table == "queries"} == {"Sort a list"}


def test_an_unknown_snippet_ends_it(tmp_path: Path) -> None:
    done = convert(tmp_path, [{"query": "how to sort", "relevant_ids": ["9"]}])
    assert done.returncode == 1
    assert "test.jsonl:1: there is no snippet '9'" in done.stderr
