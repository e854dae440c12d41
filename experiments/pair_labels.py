"""Pairs with human verdicts, as a BEIR folder in which every pair is a query of its own."""

from __future__ import annotations

import csv
import gzip
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydr.data.dataset import Dataset
from raydr.data.schema import to_table


@dataclass(frozen=True)
class Pairs:
    """The labelled pairs.

    Args:
        ids: one a pair, sorted.
        questions: the question that each belongs to.
        wrong: True if the annotators agree that the code is no solution.
        num_words: words of the code.
    """

    ids: list[str]
    questions: list[str]
    wrong: NDArray[np.bool_]
    num_words: NDArray[np.int64]


def convert(data: Path, folder: Path) -> Pairs:
    """Write a BEIR folder in which every labelled pair is a query with one positive."""
    queries = {row["_id"]: row["text"] for row in _rows(data / "queries.jsonl")}
    codes = {row["_id"]: row for row in _rows(data / "corpus.jsonl.gz")}
    labels: dict[tuple[str, str], bool] = {}
    for split in ("train", "dev", "test"):
        with open(data / "qrels" / f"{split}.tsv", encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file, delimiter="\t"):
                labels[row["query-id"], row["corpus-id"]] = int(row["score"]) == 0
    pairs = sorted((f"{question}|{code}", question, code) for question, code in labels)
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    _write(folder / "corpus.jsonl", [{"_id": one, "title": "", "text": codes[one]["text"]} for one in sorted(codes)])
    _write(folder / "queries.jsonl", [{"_id": pair, "text": queries[question]} for pair, question, _ in pairs])
    lines = ["query-id\tcorpus-id\tscore", *(f"{pair}\t{code}\t1" for pair, _, code in pairs)]
    (folder / "qrels" / "train.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Pairs(
        [pair for pair, _, _ in pairs],
        [question for _, question, _ in pairs],
        np.array([labels[question, code] for _, question, code in pairs]),
        np.array([len(codes[code]["text"].split()) for _, _, code in pairs]),
    )


def _rows(path: Path) -> list[dict[str, Any]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def siblings(pairs: Pairs, dataset: Dataset) -> pa.Table:
    """The other codes of each pair's question, as dropped candidates: they never count against it."""
    code_of = dict(
        zip(
            dataset.qrels("train")["query_id"].to_pylist(),
            dataset.qrels("train")["passage_id"].to_pylist(),
            strict=True,
        )
    )
    by_question: defaultdict[str, list[str]] = defaultdict(list)
    for pair, question in zip(pairs.ids, pairs.questions, strict=True):
        by_question[question].append(pair)
    rows = [
        {"query_id": pair, "passage_id": code_of[other], "miner": "question", "rank": rank, "action": "drop"}
        for pair, question in zip(pairs.ids, pairs.questions, strict=True)
        for rank, other in enumerate(by_question[question], start=1)
        if code_of[other] != code_of[pair]
    ]
    return to_table("negatives", rows)
