"""Shape of records of pairs, from names and values of columns: the columns of the query, the positive, ..."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from raydr.data.pairs import label_of
from raydr.data.rows import RowError, number_of
from raydr.errors import DataError

#: Number of records that decide a shape.
LOOKED_AT = 1000
#: Columns that identify records of tevatron and DPR.
_TEVATRON, DPR = {"query", "positive_passages"}, {"question", "positive_ctxs"}


def _names(text: str) -> list[str]:
    return text.split()


# Names of columns in the data sets of the field, likeliest first; compared without case, blanks and "_".
_QUERY = _names(
    "query anchor question sentence1 texta sent0 queries prompt input claim source "
    "searchterm searchterms searchquery searchtext userquery querytext keywords keyword"
)
_POSITIVE = _names(
    "positive positives pos passage document doc context sentence2 textb sent1 response "
    "code answer text body target output evidence "
    "clickedtext clickedpassage clickeddocument clickeddoc clickedtitle clickeditem "
    "passagetext documenttext doctext producttitle product"
)
_NEGATIVE = re.compile(r"(hard)?neg(ative)?s?(passages?)?\d*|sent2")
_NEGATIVE_ID = re.compile(r"(hard)?neg(ative)?s?ids?\d*")
_QUERY_ID = _names("queryid qid questionid anchorid id")
_PASSAGE_ID = _names("passageid pid positiveid positiveids posid posids docid documentid corpusid")
_TITLE = _names("title passagetitle positivetitle doctitle")
#: Judgments, then counts of clicks in logs, where a pair without clicks is no positive.
_LABEL = _names(
    "label labels score scores relevance rel similarity similarityscore rating relevant isrelevant isduplicate "
    "isselected ismatch goldlabel judgment judgement clicks numclicks clickcount nclicks click purchases"
)
#: In a log a row is written after a click, so that none of its pairs may lack one.
_CLICKS = re.compile("click|purchase")
#: Names of the class of relevant pairs.
RELEVANT = frozenset(("relevant", "positive", "yes", "true", "match", "entailment", "duplicate"))
#: Values of columns of two classes, in lower case.
_TWO_CLASSES = ({"0", "1"}, {"0.0", "1.0"}, {"false", "true"})
#: Values of judgments and of events in logs, in lower case, and the highest number of such classes.
_JUDGING = RELEVANT.union(
    _names("irrelevant negative no mismatch contradiction correct incorrect right wrong good bad click clicked")
)
_MOST_CLASSES = 10
#: Numbers as some countries and spreadsheets write them: 0,9 and 1,234 and 90%.
_OTHER_NUMBER = re.compile(r"[-+]?\d[\d.,'\s]*[%/\d]")
#: List of texts in a text, as pandas writes it into CSV.
_WRITTEN_LIST = re.compile(r"\[\s*(['\"]).*\1\s*\]", re.DOTALL)
#: Descriptions of settings whose names are not plain.
_WORDS = {"query_id": "ids of queries", "passage_id": "ids of positives", "negative_ids": "ids of negatives"}


@dataclass(frozen=True)
class PairShape:
    """Settings to read records of pairs, with a description.

    Args:
        settings: layout and columns, for the readers ``pairs`` and ``huggingface``.
        what: description of the records, for people.
        query: column of the queries' texts.
        remark: remark on an unread column of judgments, or on a guess; empty without a remark.
    """

    settings: dict[str, Any]
    what: str
    query: str = "query"
    remark: str = ""


def pair_shape(
    records: Sequence[Mapping[str, Any]], where: str, in_memory: bool = False, others: Sequence[Mapping[str, Any]] = ()
) -> PairShape:
    """Recognise the shape of some records of a file.

    Args:
        records: at least one record; the first :data:`LOOKED_AT` decide.
        where: name of their source, for messages.
        in_memory: whether the records are an argument of a function, so that no config names the columns.
        others: first records of the other splits, which may have further columns and labels.

    Raises:
        DataError: no column holds queries, or none holds positives; the message has the columns and the remedy.

    >>> pair_shape([{"anchor": "a", "positive": "b", "negative": "c"}], "a.jsonl").what
    "triplets: query in 'anchor', positive in 'positive', negatives in 'negative'"
    >>> pair_shape([{"search_term": "a", "clicked_text": "b", "clicks": "3"}], "log.csv").what
    "scored pairs: query in 'search_term', positive in 'clicked_text', judgment in 'clicks', relevant from 1"
    """
    records = records[:LOOKED_AT]
    names = list(dict.fromkeys(name for record in records for name in record))
    if set(names) >= _TEVATRON:
        return PairShape({"layout": "tevatron"}, "tevatron's records, passages with ids of their own")
    # A column with wrong values in some rows still counts: the reader reports these rows.
    some = {name: [record[name] for record in records if record.get(name) is not None] for name in names}
    filled = [name for name in names if some[name] and not _are_numbers(some[name])]
    texts = [name for name in filled if any(map(_is_text, some[name])) and not any(map(_is_list, some[name]))]
    lists = [name for name in filled if name not in texts and all(map(_is_text_or_texts, some[name]))]
    query = _first(texts, _QUERY)
    positive = _first([name for name in (*texts, *lists) if name != query], _POSITIVE)
    free = [name for name in texts if name not in (query, positive) and _may_be_text(name, some[name])]
    guess = ""
    if query is None and positive is None and len(free) == 2 and not lists:
        guess = (
            f"{where}: no column has a name that raydr knows: the queries are taken from {free[0]!r:.60}, and the "
            f"passages from {free[1]!r:.60}. Name them 'query' and 'positive', in the first line of a file"
        )
    misses_query = query is None and _first(names, _QUERY) is not None
    if query is None and free and _first(free, _TITLE) and ("_id" in names or _first(names, _PASSAGE_ID)):
        raise DataError(
            f"{where} holds passages with titles ({', '.join(map(repr, names))}) and no queries. Prepare the folder "
            "that also holds queries and judgments, or name the columns of pairs 'query' and 'positive'"
        )
    is_clear = len(free) == [query, positive].count(None) and not lists
    is_known = query is not None and (_bare(query) != "source" or _bare(positive or "") == "target")
    if is_clear and not misses_query and not _numbered(texts, _NEGATIVE):
        # A known column leaves the other column for the other text.
        query = free.pop(0) if query is None else query
        positive = free.pop(0) if positive is None else positive
    if query is None or positive is None:
        objects = [name for name in names if any(isinstance(value, dict) for value in some[name])]
        nested = f"Write the values in the objects of {objects[0]!r} as columns of their own" if objects else ""
        lacking, known = ("queries", _QUERY) if query is None else ("positives", _POSITIVE)
        named = _first([name for name in names if name not in (query, positive)], known)
        if (
            named is not None
            and (wrong := next((value for value in some[named] if not _is_text(value) or _are_numbers([value])), None))
            is not None
        ):
            rename = f"Rename this column, or the column of the {lacking}"
            raise DataError(
                f"{where}: the column {named!r} holds {wrong!r:.60}, where the {lacking} are expected: a text"
                f"{'' if query is None else ', or a list of texts'}. {nested or rename}"
            )
        config = (
            ", or write a config with reader: {name: pairs, files: {train: FILE}, columns: {query: ..., positive: "
            "...}} (docs/data.md)"
        )
        raise DataError(
            f"{where} has the columns {', '.join(map(repr, names))}, and none whose name says that it holds the "
            f"{lacking}. {nested and f'{nested}. '}Rename them to 'query' and 'positive'{'' if in_memory else config}"
        )
    is_same = len(records) > 1 and len({str(record.get(query)) for record in records}) == 1
    if not guess and (not is_known or (is_same and _bare(query) != "query")):
        guess = (
            f"{where}: the queries are taken from {query!r:.60}, {'always' if is_same else 'such as'} "
            f"{records[0].get(query)!r:.60}. If they are in another column, name it 'query'"
        )
    in_all = [name for name in names if all(record.get(name) not in (None, "", []) for record in records)]
    everything = [*records, *others]
    names = list(dict.fromkeys(name for record in everything for name in record))
    some_text = [name for name in names if any(_is_text(record.get(name)) for record in everything)]
    some_list = [name for name in names if any(isinstance(record.get(name), list) for record in everything)]
    title = _first([name for name in some_text if name not in (query, positive)], _TITLE)
    negatives = _numbered([name for name in names if name in some_text or name in some_list], _NEGATIVE)
    for name in (positive, *negatives):
        values = [record[name] for record in everything if record.get(name) not in (None, "", "[]", [])]
        if values and all(_is_text(value) and _WRITTEN_LIST.fullmatch(value) for value in values):
            raise DataError(
                f"{where}: the column {name!r} holds lists written as texts, such as {values[0]:.40}. Write JSONL or "
                "Parquet, which have lists"
            )
    negative_ids = _numbered(names, _NEGATIVE_ID)
    columns: dict[str, Any] = {
        "query": query,
        "positive": positive,
        "negatives": negatives,
        "title": title,
        "answers": _first([name for name in some_list if name != positive], ["answers"]),
        "query_id": _ids_of(records, _first(in_all, _QUERY_ID), [query]),
        "passage_id": _ids_of(records, _first(in_all, _PASSAGE_ID), [positive, *([title] if title else [])]),
        "negative_ids": negative_ids if len(negative_ids) == len(negatives) else [],
        "split": _first(some_text, ["split"]),
    }
    remark, label = guess, _first([name for name in names if name not in (query, positive)], _LABEL)
    if not negatives:
        threshold, unread_label = _threshold(everything, label, where)
        unread_label = unread_label or _unread_judgments(everything, columns | threshold, where)
        remark = ". ".join(filter(None, (unread_label, guess)))
        columns |= threshold
    elif label is not None:
        remark = f"{where}: the column {label!r} is not read beside negatives: each positive counts as relevant"
    columns = {key: value for key, value in columns.items() if value}
    return PairShape({"columns": columns}, _description(columns, positive in lists), query, remark)


def _ids_of(records: Sequence[Mapping[str, Any]], column: str | None, content: Sequence[str]) -> str | None:
    """Return the column if its ids and the content correspond one to one; else None."""
    if column is None:
        return None
    pairs = {(repr(record[column]), repr([record.get(name) for name in content])) for record in records}
    return column if len({pair for pair, _ in pairs}) == len(pairs) == len({pair for _, pair in pairs}) else None


def _threshold(records: Sequence[Mapping[str, Any]], label: str | None, where: str) -> tuple[dict[str, Any], str]:
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
        doubt = f"no label of the first pairs is below: those of the lowest, {min(values):g}, are relevant too"
    remark = (
        f"{where}: pairs are relevant from {label} {relevant_from:g} on, and {doubt}: set "
        "data.reader.columns.relevant_from"
    )
    return {"label": label, "relevant_from": relevant_from}, remark if doubt else ""


def _unread_judgments(records: Sequence[Mapping[str, Any]], columns: Mapping[str, Any], where: str) -> str:
    """Return a remark on a column that may hold judgments and is not read: a label, or a mix of 0 and 1 alone."""
    if "label" in columns:
        return ""
    read = [name for value in columns.values() for name in (value if isinstance(value, list) else [value])]
    for name in dict.fromkeys(name for record in records for name in record if name not in read):
        values = {_class_of(record[name]) for record in records if record.get(name) is not None}
        has_words = not values.isdisjoint(_JUDGING) and 1 < len(values) <= _MOST_CLASSES
        if values in _TWO_CLASSES or has_words or (_bare(name).endswith(("label", "labels")) and len(values) > 1):
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


def _description(columns: Mapping[str, Any], has_lists: bool) -> str:
    kind = "scored pairs" if "label" in columns else "triplets" if "negatives" in columns else "pairs"
    if has_lists:
        kind = "lists of positives" + (" and negatives" if "negatives" in columns else "")
    places = [
        f"{_WORDS.get(key, key)} in {', '.join(map(repr, [names] if isinstance(names, str) else names))}"
        for key, names in columns.items()
        if key not in ("label", "relevant_from")
    ]
    if "label" in columns:
        places.append(f"judgment in {columns['label']!r}, relevant from {columns['relevant_from']:g}")
    return f"{kind}: {', '.join(places)}"


def _may_be_text(name: str, values: Sequence[Any]) -> bool:
    """Return whether a column of unknown role may hold texts of queries or passages, not ids, numbers or classes."""
    return _bare(name) not in (*_QUERY_ID, *_PASSAGE_ID, *_LABEL, "split") and not _are_numbers(values)


def _are_numbers(values: Sequence[Any]) -> bool:
    """Return whether there are values and all are numbers, such as ids, also in texts and lists of these."""
    numbers: list[float] = []
    with suppress(RowError):
        numbers = [number_of(entry, "") for value in values for entry in (value if _is_list(value) else [value])]
    return bool(numbers)


def _class_of(value: Any) -> str:
    """Return a value in lower case; that of a list of a single value, as tools of annotation write it."""
    return str(value[0] if isinstance(value, list) and len(value) == 1 else value).strip().lower()


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_text_or_texts(value: Any) -> bool:
    return all(map(_is_text, value)) if isinstance(value, list) else _is_text(value)


def _first(names: Sequence[str], known: Sequence[str]) -> str | None:
    """Return the name that comes first in ``known``; None if no name is known."""
    by_bare = {_bare(name): name for name in reversed(names)}
    return next((by_bare[name] for name in known if name in by_bare), None)


def _numbered(names: Sequence[str], pattern: re.Pattern[str]) -> list[str]:
    """Return the names that match, in the order of the numbers in them."""
    matching = [name for name in names if pattern.fullmatch(_bare(name))]
    return sorted(matching, key=lambda name: int("".join(re.findall(r"\d", name)) or 0))


def _bare(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())
