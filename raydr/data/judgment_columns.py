"""Columns of judgments among records of pairs: which column it is, and from which value on a pair is relevant."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from raydr.data.pairs import label_of
from raydr.data.rows import RowError
from raydr.errors import DataError


def names_of(text: str) -> list[str]:
    """Return the names in a text, in the form of :func:`bare`."""
    return text.split()


#: Judgments, then counts of clicks in logs, where a pair without clicks is no positive.
LABEL = names_of(
    "label labels score scores relevance rel similarity similarityscore rating relevant isrelevant isduplicate "
    "isselected ismatch goldlabel judgment judgement clicks numclicks clickcount nclicks click purchases"
)
#: Counts of clicks, which may all be above 0: a log may hold clicked pairs alone.
_CLICKS = re.compile("click|purchase")
#: Names of the class of relevant pairs.
RELEVANT = frozenset(("relevant", "positive", "yes", "true", "match", "entailment", "duplicate"))
#: Values of columns of two classes, in lower case.
_TWO_CLASSES = ({"0", "1"}, {"0.0", "1.0"}, {"false", "true"})
#: Values of judgments and of events in logs, in lower case, and the highest number of such classes.
_JUDGING = RELEVANT.union(
    names_of("irrelevant negative no mismatch contradiction correct incorrect right wrong good bad click clicked")
)
_MOST_CLASSES = 10
#: Numbers as some countries and spreadsheets write them: 0,9 and 1,234 and 90%.
_OTHER_NUMBER = re.compile(r"[-+]?\d[\d.,'\s]*[%/\d]")


def threshold(records: Sequence[Mapping[str, Any]], label: str | None, where: str) -> tuple[dict[str, Any], str]:
    """Return the label column with its smallest label of a positive, and a remark.

    This label is 1 for whole numbers, else the middle of the likely scale. A column with some numbers is the label
    column, and its other rows are bad rows; a column without numbers gets a remark.
    """
    if label is None:
        return {}, ""
    values = []
    for record in records:
        with suppress(RowError):
            values.append(label_of(record, label))
    if not values:
        other = next((record[label] for record in records if record.get(label) not in (None, "")), None)
        if isinstance(other, list) and any(isinstance(value, int | float) for value in other):
            raise DataError(
                f"{where}: the column {label!r} holds lists such as {other!r:.40}, and a row has one judgment. Write a "
                "row for each passage with its judgment, or drop the column"
            )
        if isinstance(other, str) and _OTHER_NUMBER.fullmatch(other.strip()):
            raise DataError(
                f"{where}: the column {label!r} holds {other!r:.40}, and a number has a point and no other sign, such "
                "as 0.5. Write its numbers anew, or drop the column"
            )
        remark = f"{where}: the column {label!r} is not read: {other!r:.40} is no number. Each pair counts as relevant"
        return {}, "" if other is None else remark
    whole = all(value.is_integer() for value in values)
    relevant_from = 1 if whole else 0.5 if max(values) <= 1 else round(max(values)) / 2
    doubt = ""
    if max(values) < relevant_from:
        doubt = f"no label of the first pairs is above {max(values):g}"
    elif relevant_from <= min(values) < max(values) and not _CLICKS.search(label.lower()):
        doubt = f"no label of the first pairs is below {min(values):g}"
    remark = (
        f"{where}: pairs are relevant from {label} {relevant_from:g} on, and {doubt}: set "
        "data.reader.columns.relevant_from"
    )
    return {"label": label, "relevant_from": relevant_from}, remark if doubt else ""


def unread_judgments(records: Sequence[Mapping[str, Any]], columns: Mapping[str, Any], where: str) -> str:
    """Return a remark on a column that may hold judgments and is not read: a label, or a mix of 0 and 1 alone."""
    if "label" in columns:
        return ""
    read = [name for value in columns.values() for name in (value if isinstance(value, list) else [value])]
    for name in dict.fromkeys(name for record in records for name in record if name not in read):
        values = {_class_of(record[name]) for record in records if record.get(name) is not None}
        has_words = not values.isdisjoint(_JUDGING) and 1 < len(values) <= _MOST_CLASSES
        if values in _TWO_CLASSES or has_words or (bare(name).endswith(("label", "labels")) and len(values) > 1):
            return (
                f"{where}: the column {name!r} is not read, and each pair counts as relevant. If it judges the pairs, "
                "name it 'label', with 1 for relevant and 0 for not relevant"
            )
    return ""


def check_classes(schema: pa.Schema, column: str, where: str) -> Sequence[str]:
    """Return the names of the classes in a column of Hugging Face's data; empty without names.

    Raises:
        DataError: class 0 is that of relevant pairs, as in QNLI and SNLI.
    """
    features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    names: list[str] = (features.get(column) or {}).get("names") or []
    if names and names[0].lower() in RELEVANT:
        raise DataError(
            f"{where}: 0 in the column {column!r} means {names[0]!r}, and for raydr 0 is not relevant. Write its "
            "numbers anew: 1 for relevant pairs, 0 for others"
        )
    return names


def _class_of(value: Any) -> str:
    """Return a value in lower case; that of a list of a single value, as tools of annotation write it."""
    return str(value[0] if isinstance(value, list) and len(value) == 1 else value).strip().lower()


def bare(name: str) -> str:
    """Return the name of a column without case, blanks and signs.

    >>> bare("Search_Term")
    'searchterm'
    """
    return re.sub(r"[\W_]", "", name.lower())
