"""The shape of records of pairs, from column names and some values: which columns hold the query, the positive, ..."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from raydr.data.fields import RowError
from raydr.data.pairs import label_of
from raydr.errors import DataError

#: Names that columns have in the data sets of the field, the likeliest first; compared without case, blanks and ``_``.
_QUERY = (
    *("query", "anchor", "question", "sentence1", "texta", "sent0", "queries", "prompt", "input", "claim", "source"),
    *("searchterm", "searchterms", "searchquery", "searchtext", "userquery", "querytext", "keywords", "keyword"),
)
_POSITIVE = (
    *(
        "positive",
        "positives",
        "pos",
        "passage",
        "document",
        "doc",
        "context",
        "sentence2",
        "textb",
        "sent1",
        "response",
    ),
    *("code", "answer", "text", "body", "target", "output", "evidence"),
    *("clickedtext", "clickedpassage", "clickeddocument", "clickeddoc", "clickedtitle", "clickeditem"),
    *("passagetext", "documenttext", "doctext", "producttitle", "product"),
)
_NEGATIVE = re.compile(r"(hard)?neg(ative)?s?(passages?)?\d*|sent2")
_NEGATIVE_ID = re.compile(r"(hard)?neg(ative)?s?ids?\d*")
_QUERY_ID = ("queryid", "qid", "questionid", "anchorid", "id")
_PASSAGE_ID = ("passageid", "pid", "positiveid", "positiveids", "posid", "posids", "docid", "documentid", "corpusid")
_TITLE = ("title", "passagetitle", "positivetitle", "doctitle")
_LABEL = ("label", "labels", "score", "relevance", "rel", "similarity", "similarityscore", "rating")
#: Counts in logs: a pair without any is no positive.
_CLICKS = ("clicks", "numclicks", "clickcount", "nclicks", "click", "purchases")

#: Columns, and a column of lists of objects, by which tevatron's and DPR's records are known.
_TEVATRON, DPR = {"query", "positive_passages"}, {"question", "positive_ctxs"}


@dataclass(frozen=True)
class PairShape:
    """The way to read records of pairs.

    Args:
        settings: of the readers ``pairs`` and ``huggingface``: layout, columns.
        what: they are, for people.
        query: column of the queries' texts.
    """

    settings: dict[str, Any]
    what: str
    query: str = "query"


def pair_shape(records: Sequence[Mapping[str, Any]], where: str) -> PairShape:
    """Recognise the shape of some records of a file.

    Args:
        records: the first ones, not none.
        where: they were read, for messages.

    Raises:
        DataError: no column is a query's, or a positive's; names the columns and what to set.

    >>> pair_shape([{"anchor": "a", "positive": "b", "negative": "c"}], "a.jsonl").what
    "triplets: query in 'anchor', positive in 'positive', negatives in 'negative'"
    >>> pair_shape([{"search_term": "a", "clicked_text": "b", "clicks": "3"}], "log.csv").what
    "scored pairs: query in 'search_term', positive in 'clicked_text', judgment in 'clicks', relevant from 1"
    """
    names = list(dict.fromkeys(name for record in records for name in record))
    if set(names) >= _TEVATRON:
        return PairShape({"layout": "tevatron"}, "tevatron's records, passages with ids of their own")
    texts = [name for name in names if _holds(records, name, str)]
    listed = [name for name in names if _holds(records, name, list)]
    query = _find(texts, _QUERY)
    positive = _find([name for name in (*texts, *listed) if name != query], _POSITIVE)
    if len(texts) == 2 and not listed:
        # What is left is the other one.
        query = query or next(name for name in texts if name != positive)
        positive = positive or next(name for name in texts if name != query)
    if query is None or positive is None:
        lacking = "queries" if query is None else "positives"
        raise DataError(
            f"{where} has the columns {', '.join(map(repr, names))}, and none whose name says that it holds the "
            f"{lacking}. Rename them to 'query' and 'positive', or write a config with reader: {{name: pairs, files: "
            "{train: FILE}, columns: {query: ..., positive: ...}} (docs/data.md)"
        )
    columns: dict[str, Any] = {"query": query, "positive": positive}
    columns["negatives"] = sorted((name for name in (*texts, *listed) if _NEGATIVE.fullmatch(_bare(name))), key=_number)
    ids = sorted((name for name in names if _NEGATIVE_ID.fullmatch(_bare(name))), key=_number)
    if ids and len(ids) == len(columns["negatives"]):
        columns["negative_ids"] = ids
    filled = [name for name in names if all(record.get(name) not in (None, "", []) for record in records)]
    title = _find([name for name in texts if name != query], _TITLE)
    content = [positive, *([title] if title else [])]
    columns |= {
        "query_id": _identifying(records, _find(filled, _QUERY_ID), [query]),
        "passage_id": _identifying(records, _find(filled, _PASSAGE_ID), content),
        "title": title,
        "answers": _find([name for name in listed if name != positive], ("answers",)),
        "split": _find(filled, ("split",)),
    }
    if not columns["negatives"]:
        columns |= _threshold(records, _find(filled, (*_LABEL, *_CLICKS)))
    columns = {key: value for key, value in columns.items() if value}
    return PairShape({"columns": columns}, _in_words(columns, positive in listed), query)


def _identifying(records: Sequence[Mapping[str, Any]], named: str | None, content: Sequence[str]) -> str | None:
    """Return the column of ids if they are ids of the content, not of rows or of documents."""
    if named is None:
        return None
    pairs = {(repr(record[named]), repr([record.get(name) for name in content])) for record in records}
    return named if len({pair for pair, _ in pairs}) == len(pairs) == len({pair for _, pair in pairs}) else None


def _threshold(records: Sequence[Mapping[str, Any]], label: str | None) -> dict[str, Any]:
    """Return the label from which pairs are positives: 1 for whole numbers, else the middle of the likely scale."""
    values = []
    for record in records if label else ():
        with suppress(RowError):
            values.append(label_of(record, label or ""))
    if not values or len(values) < len(records):
        return {}
    whole = all(value.is_integer() for value in values)
    return {"label": label, "relevant_from": 1 if whole else 0.5 if max(values) <= 1 else round(max(values)) / 2}


def _in_words(columns: Mapping[str, Any], lists: bool) -> str:
    kind = "scored pairs" if "label" in columns else "triplets" if "negatives" in columns else "pairs"
    if lists:
        kind = "lists of positives" + (" and negatives" if "negatives" in columns else "")
    named = {"query": "query", "positive": "positive", "negatives": "negatives", "title": "title", "answers": "answers"}
    named |= {"query_id": "ids of queries", "passage_id": "ids of positives", "negative_ids": "ids of negatives"}
    named |= {"split": "split"}
    places = [
        f"{word} in {', '.join(map(repr, [names] if isinstance(names, str) else names))}"
        for key, word in named.items()
        if (names := columns.get(key))
    ]
    if "label" in columns:
        places.append(f"judgment in {columns['label']!r}, relevant from {columns['relevant_from']:g}")
    return f"{kind}: {', '.join(places)}"


def _holds(records: Sequence[Mapping[str, Any]], name: str, kind: type) -> bool:
    """Return whether a column holds texts, or lists of them; some may be missing."""
    values = [record[name] for record in records if record.get(name) is not None]
    if kind is list and any(
        not all(isinstance(entry, str) for entry in value) for value in values if type(value) is list
    ):
        return False
    return bool(values) and all(isinstance(value, kind) for value in values)


def _find(names: Sequence[str], known: Sequence[str]) -> str | None:
    by_bare = {_bare(name): name for name in reversed(names)}
    return next((by_bare[name] for name in known if name in by_bare), None)


def _bare(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


def _number(name: str) -> int:
    return int("".join(re.findall(r"\d", name)) or 0)
