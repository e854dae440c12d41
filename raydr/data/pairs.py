"""Pairs in records of any shape: which columns hold the query, the positive and the negatives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from raydr.component import Config
from raydr.data.fields import RowError, answers_of, content_id, filled_field, id_of, text_field
from raydr.data.readers.base import Row

Layout = Literal["columns", "sentence-transformers", "tevatron"]

_MINER = "source:hard"
_NEGATIVE = re.compile(r"negative(_\d+)?")


class PairColumns(Config):
    """Names of the columns; an empty name means that there is none."""

    query: str = "query"
    """The query's text."""

    positive: str = "positive"
    """The text of its positive."""

    negatives: list[str] = []
    """Columns that hold a negative or a list of negatives each, the hardest first."""

    query_id: str = ""
    """Its id; made from the text without one."""

    title: str = ""
    """Title and id of the positive."""

    passage_id: str = ""
    """See ``title``."""

    answers: str = ""
    """Answer strings."""

    split: str = ""
    """The split of the row; empty: files say it."""


def rows_of_pair(record: Mapping[str, Any], layout: Layout, columns: PairColumns, split: str, line: int) -> list[Row]:
    """The query, judgments, negatives and passages of one record.

    A passage without an id gets one from its title and text, so that equal passages are one; so does a query.

    Args:
        record: the record by column name.
        layout: ``columns``: as ``columns`` says; ``sentence-transformers``: anchor, positive, and negative or
            negative_1, negative_2, ...; ``tevatron``: query_id, query, positive_passages and negative_passages,
            lists of (docid, title, text).
        columns: names of the columns, for ``layout="columns"``.
        split: the split, unless ``columns.split`` names a column.
        line: where the record was read.

    Raises:
        RowError: a column is missing or of the wrong type.
    """
    if layout == "tevatron":
        return list(_tevatron_rows(record, split, line))
    if layout == "sentence-transformers":
        negatives = sorted((key for key in record if _NEGATIVE.fullmatch(key)), key=_negative_order)
        columns = PairColumns(query="anchor", negatives=negatives)
    return list(_column_rows(record, columns, split, line))


def _negative_order(key: str) -> int:
    return int(key.partition("_")[2] or 0)


def _column_rows(record: Mapping[str, Any], columns: PairColumns, split: str, line: int) -> Iterator[Row]:
    if columns.split:
        split = text_field(record, columns.split)
    query = filled_field(record, columns.query)
    query_id = id_of(record.get(columns.query_id), columns.query_id) if columns.query_id else content_id(query)
    answers = answers_of(record.get(columns.answers)) if columns.answers else None
    yield Row("queries", split, {"query_id": query_id, "text": query, "answers": answers}, line)
    title = text_field(record, columns.title, default="") if columns.title else ""
    text = filled_field(record, columns.positive)
    passage_id = id_of(record.get(columns.passage_id), columns.passage_id) if columns.passage_id else ""
    yield from _positive_rows(query_id, passage_id or content_id(title, text), title, text, split, line)
    negatives = [text for column in columns.negatives for text in _texts_of(record, column)]
    for rank, negative in enumerate(negatives, start=1):
        yield from _negative_rows(query_id, content_id("", negative), "", negative, rank, split, line)


def _texts_of(record: Mapping[str, Any], column: str) -> list[str]:
    value = record.get(column)
    # A table with columns negative_1 to negative_n leaves cells empty where a query has fewer.
    if value is None or value == "":
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return value
    raise RowError(f"{column!r} must be a string or a list of strings, found {value!r:.80}")


def _tevatron_rows(record: Mapping[str, Any], split: str, line: int) -> Iterator[Row]:
    query = filled_field(record, "query")
    query_id = id_of(record.get("query_id"), "query_id")
    yield Row(
        "queries", split, {"query_id": query_id, "text": query, "answers": answers_of(record.get("answers"))}, line
    )
    for passage_id, title, text in _tevatron_passages(record, "positive_passages"):
        yield from _positive_rows(query_id, passage_id, title, text, split, line)
    for rank, (passage_id, title, text) in enumerate(_tevatron_passages(record, "negative_passages"), start=1):
        yield from _negative_rows(query_id, passage_id, title, text, rank, split, line)


def _tevatron_passages(record: Mapping[str, Any], key: str) -> Iterator[tuple[str, str, str]]:
    value = record.get(key) or []
    if not isinstance(value, list) or not all(isinstance(passage, dict) for passage in value):
        raise RowError(f"{key!r} must be a list of objects with docid, title and text, found {value!r:.80}")
    for passage in value:
        title, text = text_field(passage, "title", default=""), text_field(passage, "text")
        yield id_of(passage.get("docid"), "docid"), title, text


def _positive_rows(query_id: str, passage_id: str, title: str, text: str, split: str, line: int) -> Iterator[Row]:
    yield Row("passages", "", {"passage_id": passage_id, "title": title, "text": text}, line)
    yield Row("qrels", split, {"query_id": query_id, "passage_id": passage_id, "relevance": 1}, line)


def _negative_rows(
    query_id: str, passage_id: str, title: str, text: str, rank: int, split: str, line: int
) -> Iterator[Row]:
    yield Row("passages", "", {"passage_id": passage_id, "title": title, "text": text}, line)
    values = {"query_id": query_id, "passage_id": passage_id, "miner": _MINER, "rank": rank}
    yield Row("negatives", split, values, line)
