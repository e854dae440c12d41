"""Pairs with human judgments of their labels, in the protocol that tests detection methods.

``pairs``: each row is assumed to be a right pair, and a row judged wrong is noise. ``candidates``: the first right row
of each query is its annotated positive, its other rows are assumed to be negatives, and a right row among them is
noise. Queries without a right row are left out.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from raydr.data.pairs import label_of
from raydr.data.readers.pairs import format_of, records_of
from raydr.data.rows import BadRows, RowError, join_passage, number_of
from raydr.errors import DataError
from raydr.noise.judges.base import BoolArray, FloatArray, IntArray

Subject = Literal["pairs", "candidates"]
#: Formats of files of labelled rows.
FORMATS = ("csv", "tsv", "jsonl", "parquet")


class _Row(NamedTuple):
    query: str
    passage: str
    right: bool
    source: str


@dataclass(frozen=True)
class LabelledSet:
    """N distinct judged pairs.

    Args:
        name: name of the set.
        subject: role of the pairs, see the module's docstring.
        queries, passages: texts of each pair.
        wrong_N: whether the assumed label is wrong.
        sources: source of each pair; None if the set names at most one.
        positives: annotated positive of each pair's query; None for the subject ``pairs``.
        left_out: number of excluded rows, by reason.
    """

    name: str
    subject: Subject
    queries: list[str]
    passages: list[str]
    wrong_N: BoolArray
    sources: list[str] | None
    positives: list[str] | None
    left_out: dict[str, int]

    @cached_property
    def query_N(self) -> IntArray:
        """Number of each pair's query, from 0 in the order of the texts."""
        return unique_texts(self.queries)[1]


def unique_texts(texts: Sequence[str]) -> tuple[list[str], IntArray]:
    """Return the distinct texts in order, and the number of each text among them, shape (N,).

    >>> unique_texts(["b", "a", "b"])
    (['a', 'b'], array([1, 0, 1]))
    """
    # Arrays of strings would pad each text to the longest.
    distinct, number_N = np.unique(np.array(texts, dtype=object), return_inverse=True)
    return distinct.tolist(), number_N.astype(np.int64)


def read_labelled(path: str | Path, subject: Subject = "pairs") -> LabelledSet:
    """Read a labelled set.

    It is a folder in BEIR's layout, whose judgments are labels: a score above 0 is right. Splits whose labels are all
    alike are left out; if several remain, the split is the source. Or it is a file, or a folder of files, with the
    columns ``query``, ``passage``, ``label`` (0 is wrong, 1 or more is right) and optionally ``source``.

    Args:
        path: path of the folder or file.
        subject: role of its pairs.

    Raises:
        DataError: the file is missing, a row is invalid, or all labels are equal.
    """
    # A link keeps its own name, since its target may lack the suffix.
    place = Path(os.path.abspath(path))
    left_out: dict[str, int] = {}
    rows = _judged_rows(_beir_rows(place, left_out) if (place / "qrels").is_dir() else _table_rows(place), left_out)
    name = place.name.removesuffix(".gz")
    if place.is_file():
        name = name.rpartition(".")[0]
    whole = LabelledSet(name, "pairs", *_columns(rows), positives=None, left_out=left_out)
    labelled = whole if subject == "pairs" else _as_candidates(whole)
    if not 0 < labelled.wrong_N.sum() < len(labelled.wrong_N):
        raise DataError(
            f"{path}, taken as {subject}: all {len(labelled.wrong_N)} labels are alike; expected right and wrong labels"
        )
    if len(set(labelled.queries)) < 2:
        raise DataError(f"{path}, taken as {subject}: there is a single query; expected two or more to resample")
    return labelled


def read_scores(path: str | Path) -> dict[tuple[str, str], float]:
    """Read a method's scores: rows with ``query``, ``passage``, ``score``; a higher score is more suspicious.

    Raises:
        DataError: a row is invalid, or a pair has two different scores.
    """
    scores: dict[tuple[str, str], float] = {}
    for where, record in _records(Path(path), ("query", "passage", "score")):
        score = _number(record, "score", where)
        pair = str(record["query"]).strip(), str(record["passage"]).strip()
        if scores.setdefault(pair, score) != score:
            raise DataError(f"{where}: the score is {score}, and an earlier row of the same pair has {scores[pair]}")
    return scores


def scores_on(scores: Mapping[tuple[str, str], float], labelled: LabelledSet, where: str) -> FloatArray | None:
    """Return the scores of a set's pairs, shape (N,); None if the file has no pair of the set.

    Raises:
        DataError: the file has only some pairs of the set.
    """
    pairs = list(zip(labelled.queries, labelled.passages, strict=True))
    missing = [pair for pair in pairs if pair not in scores]
    if len(missing) == len(pairs):
        return None
    if missing:
        raise DataError(
            f"{where} has no score of {len(missing):,} of the {len(pairs):,} pairs of {labelled.name}; the first is "
            f"{missing[0]!r:.160}"
        )
    return np.array([scores[pair] for pair in pairs])


def _columns(rows: Sequence[_Row]) -> tuple[list[str], list[str], BoolArray, list[str] | None]:
    sources = [row.source for row in rows]
    wrong_N = np.array([not row.right for row in rows], dtype=np.bool_)
    return (
        [row.query for row in rows],
        [row.passage for row in rows],
        wrong_N,
        sources if len(set(sources)) > 1 else None,
    )


def _judged_rows(rows: Iterator[_Row], left_out: dict[str, int]) -> list[_Row]:
    """Return each pair once, without pairs of contradictory labels."""
    by_pair: dict[tuple[str, str], list[_Row]] = {}
    for row in rows:
        by_pair.setdefault((row.query, row.passage), []).append(row)
    contradictory = {pair for pair, same in by_pair.items() if len({row.right for row in same}) > 1}
    left_out["labelled both right and wrong"] = sum(len(by_pair[pair]) for pair in contradictory)
    left_out["repeated"] = sum(len(same) - 1 for pair, same in by_pair.items() if pair not in contradictory)
    return [same[0] for pair, same in by_pair.items() if pair not in contradictory]


def _as_candidates(pairs: LabelledSet) -> LabelledSet:
    positive: dict[str, str] = {}
    for query, passage, wrong in zip(pairs.queries, pairs.passages, pairs.wrong_N.tolist(), strict=True):
        if not wrong:
            positive.setdefault(query, passage)
    has_positive_N = np.array([query in positive for query in pairs.queries])
    is_positive_N = np.array([positive.get(q) == p for q, p in zip(pairs.queries, pairs.passages, strict=True)])
    kept = np.flatnonzero(has_positive_N & ~is_positive_N)
    left_out = {
        **pairs.left_out,
        "of a query without a right passage": int((~has_positive_N).sum()),
        "taken as the annotated positive": int(is_positive_N.sum()),
    }
    queries = [pairs.queries[at] for at in kept]
    return replace(
        pairs,
        subject="candidates",
        queries=queries,
        passages=[pairs.passages[at] for at in kept],
        wrong_N=~pairs.wrong_N[kept],
        sources=None if pairs.sources is None else [pairs.sources[at] for at in kept],
        positives=[positive[query] for query in queries],
        left_out=left_out,
    )


def _beir_rows(folder: Path, left_out: dict[str, int]) -> Iterator[_Row]:
    texts = {}
    for name in ("corpus", "queries"):
        files = [path for path in (folder / f"{name}.jsonl", folder / f"{name}.jsonl.gz") if path.exists()]
        if not files:
            raise DataError(f"{folder} has a folder qrels, and no {name}.jsonl or {name}.jsonl.gz beside it")
        records = _records(files[0], ("_id", "text"))
        texts[name] = {
            str(record["_id"]): join_passage(record.get("title") or "", record["text"]) for _, record in records
        }
    for file in sorted((folder / "qrels").glob("*.tsv")):
        judged = list(_records(file, ("query-id", "corpus-id", "score")))
        rows = []
        for where, record in judged:
            query, passage = texts["queries"].get(record["query-id"]), texts["corpus"].get(record["corpus-id"])
            if query is None or passage is None:
                raise DataError(f"{where}: query {record['query-id']!r} or passage {record['corpus-id']!r} has no text")
            rows.append(_Row(query.strip(), passage.strip(), _is_right(record, "score", where), file.stem))
        if len({row.right for row in rows}) > 1:
            yield from rows
        else:
            left_out[f"of split {file.stem}, whose labels are all alike"] = len(rows)


def _table_rows(place: Path) -> Iterator[_Row]:
    files = [place] if place.is_file() else sorted(path for path in place.glob("*") if format_of(path.name) in FORMATS)
    if not files:
        raise DataError(f"{place} is no file, no folder with {', '.join(FORMATS)} files and no folder in BEIR's layout")
    for file in files:
        for where, record in _records(file, ("query", "passage", "label")):
            query, passage = str(record["query"] or "").strip(), str(record["passage"] or "").strip()
            if not query or not passage:
                raise DataError(f"{where}: the query or the passage is empty")
            source = str(record.get("source") or (file.name if len(files) > 1 else ""))
            yield _Row(query, passage, _is_right(record, "label", where), source)


def _records(path: Path, columns: Collection[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield records with their places.

    Raises:
        DataError: the file is missing, a row is bad, or a column is missing.
    """
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    bad_rows = BadRows(str(path))
    for number, record in records_of(str(path), bad_rows):
        if missing := [name for name in columns if name not in record]:
            raise DataError(f"{path}:{number}: no column {missing[0]!r}; expected {', '.join(columns)}")
        yield f"{path}:{number}", record
    if bad_rows.count:
        raise DataError(f"{bad_rows.count} rows cannot be used, the first is {bad_rows.kept[0]}")


def _is_right(record: Mapping[str, Any], column: str, where: str) -> bool:
    """Read a label: a word or a boolean, or a grade above 0."""
    grade = _number(record, column, where, words=True)
    if grade < 0:
        raise DataError(f"{where}: {column!r} is {grade:g}; expected 0 or 1, or a grade above 0")
    return grade > 0


def _number(record: Mapping[str, Any], column: str, where: str, words: bool = False) -> float:
    try:
        return label_of(record, column) if words else number_of(record[column], column)
    except RowError as error:
        raise DataError(f"{where}: {error}") from None
