"""Runs written directly, for the tests of evaluation, BM25 and mining."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from raydr.artefacts.run import KIND, part_name, rank_rows
from raydr.config.run import RunConfig
from raydr.distributed.parts import write_table
from raydr.store.building import Building, begin
from raydr.store.folder import Folder
from raydr.store.identity import Identity


def config_for(workdir: Path, **settings: Any) -> RunConfig:
    return RunConfig.parse(
        {
            "workdir": str(workdir),
            "data": {"reader": {"name": "beir", "path": "unused"}},
            "negatives": {},
            "tracking": {"enabled": False},
            **settings,
        }
    )


def make_run(path: Path, rows: Sequence[tuple[str, str, float]], queries_per_part: int = 3) -> Folder:
    """A ``run`` artefact of (query_id, passage_id, score) rows."""
    query_ids = list(dict.fromkeys(row[0] for row in rows))
    with begin(str(path), Identity(kind=KIND, config={"rows": [list(row) for row in rows]})) as state:
        assert isinstance(state, Building)
        for number, start in enumerate(range(0, len(query_ids), queries_per_part)):
            mine = [row for row in rows if row[0] in query_ids[start : start + queries_per_part]]
            name = part_name(number)
            table = rank_rows(*(pa.array(column) for column in zip(*mine, strict=True)))
            state.done[name] = write_table(state.folder, name, table)
        return state.finish().folder


def read_beir(folder: Path) -> tuple[list[dict[str, Any]], dict[str, dict[str, list[dict[str, Any]]]]]:
    """Rows of the ``beir_folder`` fixture: passages, and table name → split → rows."""
    corpus = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    passages = [{"passage_id": row["_id"], "title": row["title"], "text": row["text"]} for row in corpus]
    queries = {}
    for line in (folder / "queries.jsonl").read_text().splitlines():
        row = json.loads(line)
        queries[row["_id"]] = {"query_id": row["_id"], "text": row["text"], "answers": row["metadata"]["answers"]}
    tables: dict[str, dict[str, list[dict[str, Any]]]] = {"queries": {}, "qrels": {}}
    for file in sorted((folder / "qrels").glob("*.tsv")):
        pairs = [line.split("\t")[:2] for line in file.read_text().splitlines()[1:]]
        tables["queries"][file.stem] = [queries[query_id] for query_id, _ in pairs]
        tables["qrels"][file.stem] = [
            {"query_id": query_id, "passage_id": passage_id} for query_id, passage_id in pairs
        ]
    return passages, tables
