"""Rows of pairs without the flagged pairs, otherwise as they were read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from raydr.data.fields import RowError
from raydr.data.pairs import Layout, PairColumns, rows_of_pair

#: Ids of a query and of its passage.
PairIds = tuple[str, str]


def without_flagged(
    record: Mapping[str, Any], flagged: Collection[PairIds], layout: Layout, columns: PairColumns
) -> dict[str, Any] | None:
    """Return a record without its flagged positives; None if no positive is left.

    Where a column lists several positives, only the flagged ones leave it.

    Args:
        record: by column name.
        flagged: (query_id, passage_id) as the reader makes them.
        layout, columns: how the record is read.

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
    if not kept:
        return None
    cut = {positive: [values[at] for at in kept]}
    if isinstance(listed, list):
        cut[ids] = [listed[at] for at in kept]
    return {**record, **cut}


def pair_ids(record: Mapping[str, Any], layout: Layout, columns: PairColumns) -> list[PairIds]:
    """Return the ids of a record's pairs, as the reader makes them; none of an unusable record."""
    try:
        rows = list(rows_of_pair(layout, columns, "", False, record, 0))
    except RowError:
        return []
    return [(row.values["query_id"], row.values["passage_id"]) for row in rows if row.table == "qrels"]


def _is_flagged(record: Mapping[str, Any], flagged: Collection[PairIds], layout: Layout, columns: PairColumns) -> bool:
    """Return whether the only pair of a record was flagged."""
    return any(ids in flagged for ids in pair_ids(record, layout, columns))
