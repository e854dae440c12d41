"""Shape of records of pairs, from names and values of columns: the columns of the query, the positive, ..."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from raydr.data.judgment_columns import LABEL, bare, names_of, threshold, unread_judgments
from raydr.data.rows import RowError, number_of
from raydr.errors import DataError

#: Number of records that decide a shape.
LOOKED_AT = 1000
#: Columns that identify records of tevatron and DPR.
_TEVATRON, DPR = {"query", "positive_passages"}, {"question", "positive_ctxs"}


# Names of columns in the data sets of the field, likeliest first; compared without case, blanks and "_".
_QUERY = names_of(
    "query anchor question sentence1 texta sent0 queries prompt input claim source "
    "searchterm searchterms searchquery searchtext userquery querytext keywords keyword"
)
_POSITIVE = names_of(
    "positive positives pos passage document doc context sentence2 textb sent1 response "
    "code answer text body target output evidence "
    "clickedtext clickedpassage clickeddocument clickeddoc clickedtitle clickeditem "
    "passagetext documenttext doctext producttitle product"
)
_NEGATIVE = re.compile(r"(hard)?neg(ative)?s?(passages?)?\d*|sent2")
_NEGATIVE_ID = re.compile(r"(hard)?neg(ative)?s?ids?\d*")
_QUERY_ID = names_of("queryid qid questionid anchorid id")
_PASSAGE_ID = names_of("passageid pid positiveid positiveids posid posids docid documentid corpusid")
_TITLE = names_of("title passagetitle positivetitle doctitle")
#: Names of columns that hold no texts of queries or passages.
_NO_TEXT = (*_QUERY_ID, *_PASSAGE_ID, *LABEL, "split")
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
    if {name for record in records for name in record} >= _TEVATRON:
        return PairShape({"layout": "tevatron"}, "tevatron's records, passages with ids of their own")
    query, positive, guess = _text_columns(records, where, in_memory)
    everything = [*records, *others]
    names = list(dict.fromkeys(name for record in everything for name in record))
    in_all = [name for name in names if all(record.get(name) not in (None, "", []) for record in records)]
    some_text = [name for name in names if any(_is_text(record.get(name)) for record in everything)]
    some_list = [name for name in names if any(isinstance(record.get(name), list) for record in everything)]
    title = _first([name for name in some_text if name not in (query, positive)], _TITLE)
    negatives = _numbered([name for name in names if name in some_text or name in some_list], _NEGATIVE)
    _refuse_written_lists(everything, (positive, *negatives), where)
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
    remark, label = guess, _first([name for name in names if name not in (query, positive)], LABEL)
    if not negatives:
        label_columns, unread_label = threshold(everything, label, where)
        columns |= label_columns
        unread_label = unread_label or unread_judgments(everything, columns, where)
        remark = ". ".join(filter(None, (unread_label, guess)))
    elif label is not None:
        remark = f"{where}: the column {label!r} is not read beside negatives: each positive counts as relevant"
    columns = {key: value for key, value in columns.items() if value}
    return PairShape({"columns": columns}, _description(columns, positive in some_list), query, remark)


def _text_columns(records: Sequence[Mapping[str, Any]], where: str, in_memory: bool) -> tuple[str, str, str]:
    """Return the columns of queries and positives, and a remark if their names leave a doubt.

    Raises:
        DataError: no column holds queries, or none holds positives.
    """
    names = list(dict.fromkeys(name for record in records for name in record))
    # A column with wrong values in some rows still counts: the reader reports these rows.
    some = {name: [record[name] for record in records if record.get(name) is not None] for name in names}
    filled = [name for name in names if some[name] and not _are_numbers(some[name])]
    texts = [name for name in filled if any(map(_is_text, some[name])) and not any(map(_is_list, some[name]))]
    lists = [name for name in filled if name not in texts and all(map(_is_text_or_texts, some[name]))]
    query = _first(texts, _QUERY)
    positive = _first([name for name in (*texts, *lists) if name != query], _POSITIVE)
    free = [name for name in texts if name not in (query, positive) and bare(name) not in _NO_TEXT]
    if query is None and free and _first(free, _TITLE) and ("_id" in names or _first(names, _PASSAGE_ID)):
        raise DataError(
            f"{where} holds passages with titles ({', '.join(map(repr, names))}) and no queries. Prepare the folder "
            "that also holds queries and judgments, or name the columns of pairs 'query' and 'positive'"
        )
    is_known = query is not None and (bare(query) != "source" or bare(positive or "") == "target")
    misses_query = query is None and _first(names, _QUERY) is not None
    is_clear = len(free) == [query, positive].count(None) and not lists
    if is_clear and not misses_query and not _numbered(texts, _NEGATIVE):
        if len(free) == 2:
            remark = (
                f"{where}: no column has a name that raydr knows: the queries are taken from {free[0]!r:.60}, and the "
                f"passages from {free[1]!r:.60}. Name them 'query' and 'positive', in the first line of a file"
            )
            return free[0], free[1], remark
        # A known column leaves the other column for the other text.
        query, positive = query or free[0], positive or free[0]
    if query is None or positive is None:
        raise DataError(_missing_column(some, query, positive, where, in_memory))
    is_same = len(records) > 1 and len({str(record.get(query)) for record in records}) == 1
    if is_known and not (is_same and bare(query) != "query"):
        return query, positive, ""
    remark = (
        f"{where}: the queries are taken from {query!r:.60}, {'always' if is_same else 'such as'} "
        f"{records[0].get(query)!r:.60}. If they are in another column, name it 'query'"
    )
    return query, positive, remark


def _missing_column(
    some: Mapping[str, Sequence[Any]], query: str | None, positive: str | None, where: str, in_memory: bool
) -> str:
    """Return the message that no column holds queries, or none holds positives, from the values of all columns."""
    lacking, known = ("queries", _QUERY) if query is None else ("positives", _POSITIVE)
    objects = [name for name, values in some.items() if any(isinstance(value, dict) for value in values)]
    nested = f"Write the values in the objects of {objects[0]!r} as columns of their own" if objects else ""
    named = _first([name for name in some if name not in (query, positive)], known)
    wrong = [value for value in some[named] if not _is_text(value) or _are_numbers([value])] if named else []
    if wrong:
        rename = f"Rename this column, or the column of the {lacking}"
        return (
            f"{where}: the column {named!r} holds {wrong[0]!r:.60}, where the {lacking} are expected: a text"
            f"{'' if query is None else ', or a list of texts'}. {nested or rename}"
        )
    config = (
        ", or write a config with reader: {name: pairs, files: {train: FILE}, columns: {query: ..., positive: "
        "...}} (docs/data.md)"
    )
    return (
        f"{where} has the columns {', '.join(map(repr, some))}, and none whose name says that it holds the "
        f"{lacking}. {nested and f'{nested}. '}Rename them to 'query' and 'positive'{'' if in_memory else config}"
    )


def _refuse_written_lists(records: Sequence[Mapping[str, Any]], columns: Sequence[str], where: str) -> None:
    """Refuse columns of passages whose texts are lists, as pandas writes them into CSV.

    Raises:
        DataError: a column holds such texts alone.
    """
    for name in columns:
        values = [record[name] for record in records if record.get(name) not in (None, "", "[]", [])]
        if values and all(_is_text(value) and _WRITTEN_LIST.fullmatch(value) for value in values):
            raise DataError(
                f"{where}: the column {name!r} holds lists written as texts, such as {values[0]:.40}. Write JSONL or "
                "Parquet, which have lists"
            )


def _ids_of(records: Sequence[Mapping[str, Any]], column: str | None, content: Sequence[str]) -> str | None:
    """Return the column if its ids and the content correspond one to one; else None."""
    if column is None:
        return None
    pairs = {(repr(record[column]), repr([record.get(name) for name in content])) for record in records}
    return column if len({pair for pair, _ in pairs}) == len(pairs) == len({pair for _, pair in pairs}) else None


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


def _are_numbers(values: Sequence[Any]) -> bool:
    """Return whether there are values and all are numbers, such as ids, also in texts and lists of these."""
    numbers: list[float] = []
    with suppress(RowError):
        numbers = [number_of(entry, "") for value in values for entry in (value if _is_list(value) else [value])]
    return bool(numbers)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_text_or_texts(value: Any) -> bool:
    return all(map(_is_text, value)) if isinstance(value, list) else _is_text(value)


def _first(names: Sequence[str], known: Sequence[str]) -> str | None:
    """Return the name that comes first in ``known``; None if no name is known."""
    by_bare = {bare(name): name for name in reversed(names)}
    return next((by_bare[name] for name in known if name in by_bare), None)


def _numbered(names: Sequence[str], pattern: re.Pattern[str]) -> list[str]:
    """Return the names that match, in the order of the numbers in them."""
    matching = [name for name in names if pattern.fullmatch(bare(name))]
    return sorted(matching, key=lambda name: int("".join(re.findall(r"\d", name)) or 0))
