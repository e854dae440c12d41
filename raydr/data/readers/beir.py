"""BEIR folders: corpus, queries and judgments by split, in the files of the authors or in those of the hub."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal

from raydr.data.inputs import absolute, exists, find_input, join, shown_files
from raydr.data.lines import read_json_lines, read_lines, read_tsv, wrong_count
from raydr.data.ranges import ALL_LINES, LineRange
from raydr.data.readers.base import HARD_MINER, Reader, Row, Source, read_rows
from raydr.data.readers.pairs import format_of, parquet_records
from raydr.data.rows import (
    BadRows,
    RowError,
    answers_of,
    columns_of,
    id_field,
    id_of,
    number_of,
    passage_field,
    relevance_of,
    text_field,
)
from raydr.errors import DataError
from raydr.store import Folder

_QRELS = ("query-id", "corpus-id", "score")
_NEGATIVES = (*_QRELS, "miner")
_TREC = ("query-id", "iteration", "corpus-id", "score")


class BeirReader(Reader):
    """Data set in BEIR's format.

    ``corpus.jsonl`` has ``_id``, ``title`` (may be absent) and ``text``; ``queries.jsonl`` has ``_id`` and ``text``,
    and may have answer strings in ``metadata.answers``. Either may be a folder of .parquet or .jsonl files with these
    columns, as on the hub. ``qrels/SPLIT.tsv`` has query-id, corpus-id and score, with or without a header, or lines as
    trec_eval reads them (query, iteration, passage, relevance). SPLIT.jsonl and SPLIT.parquet have the same columns; a
    missing score is 1. A query belongs to the splits whose qrels name it; a query without qrels is counted and left
    out. A passage with a score of 0 or less is judged not relevant, and is a negative of its query.
    ``negatives/SPLIT.tsv`` of ``raydr export`` (query-id, corpus-id, score, miner; best first) has further negatives.
    """

    identifying: ClassVar[frozenset[str]] = frozenset({"name"})

    name: Literal["beir"] = "beir"
    path: str
    """Folder of the data set, local or an fsspec URL."""

    corpus: str = "corpus.jsonl"
    """File of the passages, or folder of files."""

    queries: str = "queries.jsonl"
    """File of the queries, or folder of files."""

    qrels: str = "qrels"
    """Folder with the judgments of each split."""

    splits: list[str] = []
    """Splits to read; all files of the qrels folder if empty."""

    answers: str = ""
    """JSONL file of ``_id`` and ``answers``; if empty, answers are taken from the queries."""

    def sources(self) -> list[Source]:
        queries = self._files(self.queries, "queries")
        qrels = self._qrels_paths()
        needs = tuple(qrels.values())
        if self.answers:
            needs += (find_input(self.path, self.answers, "answers"),)
        return [
            *(
                Source(
                    path, "corpus", tables=("passages",), divided="rows" if format_of(path) == "parquet" else "lines"
                )
                for path in self._files(self.corpus, "passages")
            ),
            *(Source(path, "queries", tables=("queries",), also=needs) for path in queries),
            *(Source(path, "qrels", split, tables=("qrels",)) for split, path in qrels.items()),
            *(Source(path, "negatives", split, tables=("negatives",)) for split, path in self._negatives_paths(qrels)),
        ]

    def read(self, source: Source, bad_rows: BadRows) -> Iterator[Row]:
        if source.role == "corpus":
            return read_rows(_records(source.path, bad_rows, source.lines), bad_rows, _passage)
        if source.role == "qrels":
            return _read_qrels(source.path, source.split, bad_rows)
        if source.role == "negatives":
            return _read_negatives(source.path, source.split, bad_rows)
        return self._read_queries(source, bad_rows)

    def _files(self, name: str, what: str) -> list[str]:
        """Return the path of a file, or those of a folder's files."""
        folder = Folder(join(self.path, name))
        if not folder.exists() or exists(folder.url):
            return [find_input(self.path, name, what)]
        return [join(folder.url, file) for file in shown_files(folder) if format_of(file) in ("jsonl", "parquet")]

    def _qrels_paths(self) -> dict[str, str]:
        folder = Folder(join(self.path, self.qrels))
        paths = {split: join(folder.url, name) for split, name in qrels_files(shown_files(folder)).items()}
        if self.splits:
            return {
                split: paths.get(split) or find_input(self.path, f"{self.qrels}/{split}.tsv", "judgments")
                for split in self.splits
            }
        if not paths:
            raise DataError(
                f"{absolute(str(folder))} has no judgments: expected a .tsv for each split with {', '.join(_QRELS)}. "
                "Check data.reader.path and data.reader.qrels."
            )
        return paths

    def _negatives_paths(self, splits: Iterable[str]) -> list[tuple[str, str]]:
        paths = [(split, join(self.path, f"negatives/{split}.tsv")) for split in splits]
        return [(split, path) for split, path in paths if exists(path)]

    def _read_queries(self, source: Source, bad_rows: BadRows) -> Iterator[Row]:
        splits_of: dict[str, dict[str, None]] = {}
        for split, path in self._qrels_paths().items():
            # Bad rows of the qrels are reported when they are read as a source.
            for row in _read_qrels(path, split, BadRows(path)):
                splits_of.setdefault(row.values["query_id"], {})[split] = None
        answers = self._read_answers(source.also[-1], bad_rows) if self.answers else None

        def queries(record: Mapping[str, Any], line: int) -> Iterator[Row]:
            query_id = id_field(record, "_id")
            metadata = record.get("metadata") or {}
            if not isinstance(metadata, dict):
                raise RowError(f"'metadata' must be an object, found {metadata!r:.80}")
            query_answers = answers.get(query_id) if answers is not None else answers_of(metadata.get("answers"))
            for split in splits_of.get(query_id, [""]):
                yield Row.query(split, query_id, text_field(record, "text"), line, query_answers)

        yield from read_rows(_records(source.path, bad_rows), bad_rows, queries)

    def _read_answers(self, path: str, bad_rows: BadRows) -> dict[str, list[str] | None]:
        own = BadRows(path)
        answers: dict[str, list[str] | None] = {}
        for line, record in read_json_lines(path, own):
            try:
                answers[id_field(record, "_id")] = answers_of(record.get("answers"))
            except RowError as error:
                own.add(line, str(error), record)
        bad_rows.extend(own)
        return answers


def qrels_files(names: Iterable[str]) -> dict[str, str]:
    """Return the file of judgments of each split, from the names in their folder.

    Of several files of a split a TSV goes first, and a file before its compressed copy.

    >>> qrels_files(["dev.tsv.gz", "test.jsonl", "test.tsv", "train-00000-of-00001.parquet"])
    {'dev': 'dev.tsv.gz', 'test': 'test.tsv', 'train': 'train-00000-of-00001.parquet'}
    """
    kinds = [kind for end in ("tsv", "jsonl", "parquet") for kind in (f".{end}", f".{end}.gz")]
    files: dict[str, str] = {}
    for kind, name in ((kind, name) for kind in kinds for name in names if name.endswith(kind)):
        files.setdefault(re.sub(r"-0+-of-0*1$", "", name.removesuffix(kind)), name)
    return dict(sorted(files.items(), key=lambda item: item[1]))


def _records(path: str, bad_rows: BadRows, lines: LineRange = ALL_LINES) -> Iterator[tuple[int, Mapping[str, Any]]]:
    return parquet_records(path, lines) if format_of(path) == "parquet" else read_json_lines(path, bad_rows, lines)


def _passage(record: Mapping[str, Any], line: int) -> Iterator[Row]:
    yield Row.passage(id_field(record, "_id"), *passage_field(record), line)


def _read_qrels(path: str, split: str, bad_rows: BadRows) -> Iterator[Row]:
    def judgment(text: str, line: int) -> Iterator[Row]:
        fields, trec = text.split("\t"), columns_of(text)
        if len(fields) != len(_QRELS) and len(trec) == len(_TREC):
            # query, iteration (which nobody uses), passage, relevance.
            fields = [trec[0], *trec[2:]]
        if not trec or (line == 1 and tuple(fields) == _QRELS):
            return
        if len(fields) != len(_QRELS):
            raise RowError(wrong_count(_QRELS, fields))
        query_id, passage_id = id_of(fields[0], "query-id"), id_of(fields[1], "corpus-id")
        yield Row.judgment(split, query_id, passage_id, line, relevance_of(fields[2]))

    def recorded(record: Mapping[str, Any], line: int) -> Iterator[Row]:
        query_id, passage_id = id_field(record, "query-id"), id_field(record, "corpus-id")
        yield Row.judgment(split, query_id, passage_id, line, relevance_of(record.get("score", 1)))

    if format_of(path) != "tsv":
        return read_rows(_records(path, bad_rows), bad_rows, recorded)
    return read_rows(read_lines(path, bad_rows), bad_rows, judgment)


def _read_negatives(path: str, split: str, bad_rows: BadRows) -> Iterator[Row]:
    ranks: Counter[str] = Counter()

    def negative(fields: list[str], line: int) -> Iterator[Row]:
        query_id, passage_id, score, miner = fields
        ranks[query_id] += 1
        row = Row.negative(split, id_of(query_id, "query-id"), id_of(passage_id, "corpus-id"), line, ranks[query_id])
        row.values["miner"] = miner or HARD_MINER
        row.values["score"] = number_of(score, "score") if score else None
        yield row

    return read_rows(read_tsv(path, _NEGATIVES, bad_rows), bad_rows, negative)
