"""Pairs with human verdicts, as a BEIR folder in which every pair is a query of its own."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from experiments.beir_files import read_qrels, read_rows, write_qrels, write_rows
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
    queries = {row["_id"]: row["text"] for row in read_rows(data, "queries")}
    codes = {row["_id"]: row["text"] for row in read_rows(data, "corpus")}
    judged = [row for rows in read_qrels(data).values() for row in rows]
    labels = {(question, code): int(score) == 0 for question, code, score in judged}
    pairs = sorted((f"{question}|{code}", question, code) for question, code in labels)
    write_qrels(folder, "train", [(pair, code, "1") for pair, _, code in pairs])
    write_rows(folder, "corpus", [{"_id": one, "title": "", "text": codes[one]} for one in sorted(codes)])
    write_rows(folder, "queries", [{"_id": pair, "text": queries[question]} for pair, question, _ in pairs])
    return Pairs(
        [pair for pair, _, _ in pairs],
        [question for _, question, _ in pairs],
        np.array([labels[question, code] for _, question, code in pairs]),
        np.array([len(codes[code].split()) for _, _, code in pairs]),
    )


def siblings(pairs: Pairs, dataset: Dataset) -> pa.Table:
    """The other codes of each pair's question, as dropped candidates: they never count against it."""
    qrels = dataset.qrels("train")
    code_of = dict(zip(qrels["query_id"].to_pylist(), qrels["passage_id"].to_pylist(), strict=True))
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
