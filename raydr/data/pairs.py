"""Rows of queries, judgments, negatives and passages from records of pairs, by the names of columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Literal

from raydr.component import Config
from raydr.data.readers.base import Row
from raydr.data.rows import (
    HIGHEST_GRADE,
    RowError,
    absent,
    answers_of,
    content_id,
    filled_field,
    id_field,
    id_of,
    is_grade,
    list_of,
    number_of,
    passage_field,
    text_field,
)

Layout = Literal["columns", "sentence-transformers", "tevatron"]
#: Ids of a query and of its passage.
PairIds = tuple[str, str]

_TRUTHS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
_NEGATIVE = re.compile(r"negative(_\d+)?")


class PairColumns(Config):
    """Names of the columns; a name is empty if the data lack the column."""

    query: str = "query"
    """Text of the query."""

    positive: str = "positive"
    """Text of the positive, or a list of texts."""

    negatives: list[str] = []
    """Columns of a negative or a list of negatives each, hardest first."""

    label: str = ""
    """Judgment of the pair: a number, true or false, or yes or no; without this column every pair is relevant."""

    relevant_from: float = 1
    """Smallest label of a positive; pairs below it are judged not relevant, and are negatives. Where all labels of a
    file are whole, the label of a positive is its relevance; else the relevance is 1."""

    query_id: str = ""
    """Id of the query; made from the text without this column."""

    title: str = ""
    """Title of the positive."""

    passage_id: str = ""
    """Id of the positive, or a list of ids; made from title and text without this column."""

    negative_ids: list[str] = []
    """Ids of the negatives, a column for each of ``negatives``."""

    answers: str = ""
    """Answer strings."""

    split: str = ""
    """Split of the row; empty if the split depends on the file."""


def rows_of_pair(
    layout: Layout, columns: PairColumns, split: str, graded: bool, record: Mapping[str, Any], line: int
) -> Iterator[Row]:
    """Yield the query, judgments, negatives and passages of a record.

    Passages and queries without ids get ids from their content, so that equal texts share an id.

    Args:
        layout: ``columns``: named columns; ``sentence-transformers``: anchor, positive, and negative or negative_1,
            negative_2, ...; ``tevatron``: query_id, query, positive_passages and negative_passages, lists of (docid,
            title, text).
        columns: names of the columns, for ``layout="columns"``.
        split: split of the record, unless ``columns.split`` names a column.
        graded: whether labels are grades of relevance, see :func:`look_at_labels`.
        record: record by column name.
        line: line of the record.

    Raises:
        RowError: a column is missing or of the wrong type.
    """
    if layout == "tevatron":
        return _tevatron_rows(record, split, line)
    if layout == "sentence-transformers":
        numbers = {key: int(key.partition("_")[2] or 0) for key in record if _NEGATIVE.fullmatch(key)}
        negatives = sorted(numbers, key=numbers.__getitem__)
        columns = PairColumns(query="anchor", negatives=negatives)
    return _column_rows(record, columns, split, graded, line)


def look_at_labels(
    layout: Layout, columns: PairColumns, records: Callable[[], Iterable[tuple[int, Mapping[str, Any]]]], file: str
) -> tuple[bool, str]:
    """Return whether the labels of a file are grades of relevance; a single rule per file keeps their order.

    Args:
        layout: layout of the records.
        columns: columns of the records.
        records: function that reads the file from its start; called only if there are labels.
        file: name of the file, for the remark.

    Returns:
        Whether labels are grades, and a remark on this decision; empty if it changes nothing.
    """
    if layout != "columns" or not columns.label:
        return False, ""
    highest = 0.0
    for _, record in records():
        try:
            label = label_of(record, columns.label)
        except RowError:
            continue
        if not is_grade(label):
            kind = "are not whole" if not label.is_integer() else f"are higher than grades ({HIGHEST_GRADE})"
            return False, (
                f"{file}: labels such as {label:g} {kind}, so that each pair is relevant "
                f"({columns.label} from {columns.relevant_from:g} on) or it is not"
            )
        highest = max(highest, label)
    graded = f"{file}: labels are whole and go up to {highest:g}: they are taken as grades of relevance"
    return True, graded if highest > 1 else ""


def _column_rows(record: Mapping[str, Any], columns: PairColumns, split: str, graded: bool, line: int) -> Iterator[Row]:
    if columns.split:
        split = text_field(record, columns.split)
    query = filled_field(record, columns.query)
    query_id = id_field(record, columns.query_id) if columns.query_id else content_id(query)
    answers = answers_of(record.get(columns.answers)) if columns.answers else None
    yield Row.query(split, query_id, query, line, answers)
    title = text_field(record, columns.title, default="") if columns.title else ""
    if record.get(columns.positive) is None:
        raise absent(record, columns.positive)
    positives = _passages_of(record, columns.positive, columns.passage_id, title)
    if not positives:
        raise RowError(f"empty text in {columns.positive!r}")
    relevance = pair_relevance(record, columns, graded)
    for passage_id, text in positives:
        yield Row.passage(passage_id, title, text, line)
        yield Row.judgment(split, query_id, passage_id, line, relevance)
    negatives: list[tuple[str, str]] = []
    ids = [*columns.negative_ids, *[""] * (len(columns.negatives) - len(columns.negative_ids))]
    for column, id_column in zip(columns.negatives, ids, strict=True):
        negatives += (passages := _passages_of(record, column, id_column))
        for passage_id, text in passages:
            yield Row.passage(passage_id, "", text, line)
    for rank, (passage_id, _) in enumerate(negatives, start=1):
        yield Row.negative(split, query_id, passage_id, line, rank)


def _passages_of(record: Mapping[str, Any], column: str, id_column: str, title: str = "") -> list[tuple[str, str]]:
    """Return ids and texts of a column's passages that are not blank; without ``id_column``, make ids."""
    value = record.get(column)
    # Columns negative_1 to negative_n have empty cells for queries with fewer negatives.
    texts = [value] if isinstance(value, str) else value or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise RowError(f"{column!r} must be a string or a list of strings, found {value!r:.80}")
    ids = record.get(id_column)
    ids = ids if isinstance(ids, list) else [ids] * len(texts)
    if id_column and len(ids) != len(texts):
        raise RowError(f"{column!r} has {len(texts)} texts, {id_column!r} has {len(ids)} ids")
    return [
        (id_of(record_id, id_column) if id_column else content_id(title, text), text)
        for record_id, text in zip(ids, texts, strict=True)
        if text.strip() or (title.strip() and isinstance(value, str))
    ]


def label_of(record: Mapping[str, Any], key: str) -> float:
    """Return the judgment of a record: a number, or true or yes (1), or false or no (0), also in words, as in CSV.

    >>> [label_of({"label": value}, "label") for value in ("0.5", True, " FALSE ", "Yes")]
    [0.5, 1.0, 0.0, 1.0]
    """
    value = record.get(key)
    truth = _TRUTHS.get(str(value).strip().lower()) if isinstance(value, str | bool) else None
    return number_of(value, key) if truth is None else truth


def pair_relevance(record: Mapping[str, Any], columns: PairColumns, graded: bool) -> int:
    """Return the relevance of a record's pair: 1 without a column of labels, else 0, 1 or the grade."""
    if not columns.label:
        return 1
    label = label_of(record, columns.label)
    if label < columns.relevant_from:
        return 0
    return int(label) if graded and label > 0 else 1


def _tevatron_rows(record: Mapping[str, Any], split: str, line: int) -> Iterator[Row]:
    query = filled_field(record, "query")
    query_id = id_field(record, "query_id")
    yield Row.query(split, query_id, query, line, answers_of(record.get("answers")))
    for passage_id, title, text in _tevatron_passages(record, "positive_passages"):
        yield Row.passage(passage_id, title, text, line)
        yield Row.judgment(split, query_id, passage_id, line)
    for rank, (passage_id, title, text) in enumerate(_tevatron_passages(record, "negative_passages"), start=1):
        yield Row.passage(passage_id, title, text, line)
        yield Row.negative(split, query_id, passage_id, line, rank)


def _tevatron_passages(record: Mapping[str, Any], key: str) -> Iterator[tuple[str, str, str]]:
    expected = f"{key!r} must be a list of objects with docid, title and text"
    for passage in list_of(dict, record.get(key) or [], expected):
        yield (id_field(passage, "docid"), *passage_field(passage))


def without_flagged(
    record: Mapping[str, Any], flagged: Collection[PairIds], layout: Layout, columns: PairColumns
) -> dict[str, Any] | None:
    """Return a record without its flagged positives; None if no positive is left.

    A list of several positives loses the flagged positives only.

    Args:
        record: record by column name.
        flagged: (query_id, passage_id) pairs, as the reader makes them.
        layout, columns: settings of the reader.

    >>> columns = PairColumns(query_id="qid", passage_id="pid")
    >>> row = {"qid": "1", "query": "q", "pid": "7", "positive": "p"}
    >>> without_flagged(row, {("1", "7")}, "columns", columns), without_flagged(row, set(), "columns", columns) == row
    (None, True)
    """
    positive = {"sentence-transformers": "positive", "tevatron": "positive_passages"}.get(layout, columns.positive)
    values = record.get(positive)
    if not isinstance(values, list):
        return None if _is_flagged(record, flagged, layout, columns) else dict(record)
    ids = columns.passage_id if layout == "columns" else ""
    listed = record.get(ids) if ids else None
    alone = [
        {**record, positive: [value], **({ids: listed[at : at + 1]} if isinstance(listed, list) else {})}
        for at, value in enumerate(values)
    ]
    kept = [at for at, record in enumerate(alone) if not _is_flagged(record, flagged, layout, columns)]
    # Blank texts, which may fill up a list, are no positives.
    if len(kept) < len(values) and not any(pair_ids(alone[at], layout, columns) for at in kept):
        return None
    cut = {positive: [values[at] for at in kept]}
    if isinstance(listed, list):
        cut[ids] = [listed[at] for at in kept]
    return {**record, **cut}


def pair_ids(record: Mapping[str, Any], layout: Layout, columns: PairColumns) -> list[PairIds]:
    """Return the ids of a record's pairs, as the reader makes them; empty for an unusable record."""
    try:
        rows = list(rows_of_pair(layout, columns, "", False, record, 0))
    except RowError:
        return []
    return [(row.values["query_id"], row.values["passage_id"]) for row in rows if row.table == "qrels"]


def _is_flagged(record: Mapping[str, Any], flagged: Collection[PairIds], layout: Layout, columns: PairColumns) -> bool:
    """Return whether a pair of the record is flagged."""
    return any(ids in flagged for ids in pair_ids(record, layout, columns))
