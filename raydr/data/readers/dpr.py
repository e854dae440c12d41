"""DPR's files: psgs_w100.tsv, biencoder JSON (nq-train.json) and retriever CSV (question and answers)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from raydr.data.inputs import find_input
from raydr.data.json_array import read_json_array
from raydr.data.lines import read_json_lines, read_tsv
from raydr.data.readers.base import DATASET_TABLES, HARD_MINER, Reader, Row, Source, read_rows
from raydr.data.readers.pairs import format_of
from raydr.data.rows import (
    BadRows,
    RowError,
    answers_of,
    content_id,
    filled_field,
    id_of,
    list_of,
    number_of,
    passage_field,
    written_answers,
)
from raydr.data.tables import RANDOM_MINER

_PASSAGES = ("id", "text", "title")
_RETRIEVER = ("question", "answers")
#: DPR's lists of negatives, and the miner of their rows.
_MINERS = {"hard_negative_ctxs": HARD_MINER, "negative_ctxs": RANDOM_MINER}


class DprReader(Reader):
    """Data in the formats of facebookresearch/DPR.

    The corpus is the passages TSV (id, text, title, quoted as DPR does). Without this file it is made of the contexts
    of the biencoder files, merged by id. ``positive_ctxs`` become judgments of relevance 1; ``hard_negative_ctxs`` and
    ``negative_ctxs`` become negatives of the miners ``source:hard`` and ``source:random``, their rank the place in
    the list. A question without ``q_id`` gets the id SPLIT-N, N counting the file's records from 0. In a biencoder
    file the line of a row is its record's number, from 1.
    """

    passages_repeat: ClassVar[bool] = True

    name: Literal["dpr"] = "dpr"
    path: str
    """Folder of the files, local or an fsspec URL."""

    passages: str = ""
    """TSV of the passages; if empty, the corpus is made of the contexts."""

    biencoder: dict[str, str] = {}
    """Biencoder file of each split: a JSON array, or a .jsonl file."""

    retriever: dict[str, str] = {}
    """Retriever file (question, list of answers) of each split."""

    @model_validator(mode="after")
    def _check(self) -> DprReader:
        both = sorted(self.biencoder.keys() & self.retriever.keys())
        if both:
            raise ValueError(f"a split has either a biencoder or a retriever file; both are given for {both[0]!r}")
        if not self.biencoder and not self.retriever:
            raise ValueError("give a biencoder or a retriever file for at least one split")
        if not self.passages and not self.biencoder:
            raise ValueError("there is no corpus: give the passages TSV, or a biencoder file with contexts")
        return self

    def sources(self) -> list[Source]:
        sources = []
        if self.passages:
            passages = find_input(self.path, self.passages, "passages")
            sources.append(Source(passages, "passages", tables=("passages",), divided="quoted"))
        for split, name in self.biencoder.items():
            path = find_input(self.path, name, f"questions and contexts of split {split}")
            tables = DATASET_TABLES if self.passages else ("passages", *DATASET_TABLES)
            sources.append(Source(path, "biencoder", split, tables))
        for split, name in self.retriever.items():
            path = find_input(self.path, name, f"questions and answers of split {split}")
            sources.append(Source(path, "retriever", split, ("queries",)))
        return sources

    def read(self, source: Source, bad_rows: BadRows) -> Iterator[Row]:
        path, split = source.path, source.split
        if source.role == "passages":
            return read_rows(read_tsv(path, _PASSAGES, bad_rows, quoted=True, lines=source.lines), bad_rows, _passage)
        if source.role == "retriever":
            return read_rows(read_tsv(path, _RETRIEVER, bad_rows, quoted=True), bad_rows, partial(_question, split))
        records = (read_json_lines if format_of(path) == "jsonl" else read_json_array)(path, bad_rows)
        return read_rows(records, bad_rows, partial(self._rows_of, split), "record")

    def content_key(self) -> dict[str, Any]:
        return {"name": self.name, "passages": bool(self.passages)}

    def _rows_of(self, split: str, item: dict[str, Any], record: int) -> Iterator[Row]:
        query_id = id_of(item["q_id"], "q_id") if item.get("q_id") is not None else f"{split}-{record - 1}"
        answers = answers_of(item.get("answers"))
        yield Row.query(split, query_id, filled_field(item, "question"), record, answers)
        for context in _contexts(item, "positive_ctxs"):
            yield from self._passage_rows(context, record)
            yield Row.judgment(split, query_id, self._id_of(context), record)
        for key, miner in _MINERS.items():
            for rank, context in enumerate(_contexts(item, key), start=1):
                yield from self._passage_rows(context, record)
                passage_id, score = self._id_of(context), _score_of(context)
                yield Row.negative(split, query_id, passage_id, record, rank, miner=miner, score=score)

    def _passage_rows(self, context: dict[str, Any], record: int) -> Iterator[Row]:
        if not self.passages:
            yield Row.passage(self._id_of(context), *passage_field(context), record)

    def _id_of(self, context: dict[str, Any]) -> str:
        for key in ("psg_id", "passage_id"):
            if context.get(key) is not None:
                return id_of(context[key], key)
        if self.passages:
            raise RowError("a context has neither psg_id nor passage_id, so it cannot be found in the passages TSV")
        return content_id(*passage_field(context))


def _contexts(item: dict[str, Any], key: str) -> list[dict[str, Any]]:
    return list_of(dict, item.get(key, []), f"{key!r} must be a list of objects")


def _score_of(context: dict[str, Any]) -> float | None:
    score = context.get("score")
    return None if score is None else number_of(score, "score of a context")


def _passage(fields: list[str], line: int) -> Iterator[Row]:
    yield Row.passage(id_of(fields[0], "id"), fields[2], fields[1], line)


def _question(split: str, fields: list[str], line: int) -> Iterator[Row]:
    yield Row.query(split, f"{split}-{line - 1}", fields[0], line, written_answers(fields[1]))
