"""MS MARCO passage ranking: collection, queries, qrels, and triples or negatives, all tab-separated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from raydr.data.inputs import find_input
from raydr.data.lines import read_lines, read_tsv
from raydr.data.readers.base import Reader, Row, Source, read_rows
from raydr.data.rows import BadRows, RowError, columns_of, id_of, relevance_of
from raydr.data.tables import TableName


class MsmarcoReader(Reader):
    """MS MARCO's files, plain or gzipped. In file names, ``{split}`` stands for the split."""

    identifying: ClassVar[frozenset[str]] = frozenset({"name"})

    name: Literal["msmarco"] = "msmarco"
    path: str
    """Folder of the files, local or an fsspec URL."""

    splits: Annotated[list[str], Field(min_length=1)] = ["train", "dev"]
    """Splits to read."""

    collection: str = "collection.tsv"
    """File of the passages: pid, text."""

    queries: str = "queries.{split}.tsv"
    """File of the queries: qid, text."""

    qrels: str = "qrels.{split}.tsv"
    """File of the judgments: qid, 0, pid, relevance. If empty, the judgments are the positives of the triples."""

    triples: dict[str, str] = {}
    """File of each split's triples: qid, pid of the positive, pid of the negative."""

    negatives: dict[str, str] = {}
    """File of each split's hard negatives: qid, pids separated by commas, best first."""

    def sources(self) -> list[Source]:
        judged: tuple[TableName, ...] = () if self.qrels else ("qrels",)
        collection = find_input(self.path, self.collection, "passages (pid, text)")
        sources = [Source(collection, "collection", tables=("passages",), divided="lines")]
        for split in self.splits:
            queries, qrels = self.queries.format(split=split), self.qrels.format(split=split)
            sources.append(self._source(queries, "queries", f"queries of split {split}", split, "queries"))
            if qrels:
                sources.append(self._source(qrels, "qrels", f"judgments of split {split}", split, "qrels"))
            if file := self.triples.get(split):
                sources.append(self._source(file, "triples", "triples (qid, pid, pid)", split, *judged, "negatives"))
            if file := self.negatives.get(split):
                sources.append(self._source(file, "negatives", "negatives (qid, pids)", split, "negatives"))
        return sources

    def _source(self, name: str, role: str, what: str, split: str, *tables: TableName) -> Source:
        return Source(find_input(self.path, name, what), role, split, tables)

    def read(self, source: Source, bad_rows: BadRows) -> Iterator[Row]:
        if source.has_only_passages:
            return _read_collection(source, bad_rows)
        read = {"queries": _read_queries, "qrels": _read_qrels, "triples": _read_triples, "negatives": _read_negatives}
        # Beside qrels, only the negatives of triples count.
        return (row for row in read[source.role](source.path, source.split, bad_rows) if row.table in source.tables)


def _read_collection(source: Source, bad_rows: BadRows) -> Iterator[Row]:
    for line, (passage_id, text) in read_tsv(source.path, ("pid", "text"), bad_rows, lines=source.lines):
        yield Row.passage(passage_id, "", text, line)


def _read_queries(path: str, split: str, bad_rows: BadRows) -> Iterator[Row]:
    for line, (query_id, text) in read_tsv(path, ("qid", "text"), bad_rows):
        yield Row.query(split, query_id, text, line)


def _read_qrels(path: str, split: str, bad_rows: BadRows) -> Iterator[Row]:
    def judgment(text: str, line: int) -> Iterator[Row]:
        # TREC qrels are separated by any white space; MS MARCO's by tabs.
        fields = columns_of(text)
        if fields and len(fields) != 4:
            raise RowError(f"expected 4 columns (qid, 0, pid, relevance), found {len(fields)}")
        if fields:
            yield Row.judgment(split, fields[0], fields[2], line, relevance_of(fields[3]))

    return read_rows(read_lines(path, bad_rows), bad_rows, judgment)


def _read_triples(path: str, split: str, bad_rows: BadRows) -> Iterator[Row]:
    judged: set[tuple[str, str]] = set()
    ranks: Counter[str] = Counter()
    for line, (query_id, positive, negative) in read_tsv(path, ("qid", "pid+", "pid-"), bad_rows):
        if (query_id, positive) not in judged:
            judged.add((query_id, positive))
            yield Row.judgment(split, query_id, positive, line)
        ranks[query_id] += 1
        yield Row.negative(split, query_id, negative, line, ranks[query_id])


def _read_negatives(path: str, split: str, bad_rows: BadRows) -> Iterator[Row]:
    def negative(record: tuple[str, int, str], line: int) -> Iterator[Row]:
        query_id, rank, passage_id = record
        yield Row.negative(split, query_id, id_of(passage_id.strip(), "pid"), line, rank)

    lists = read_tsv(path, ("qid", "pid,pid,..."), bad_rows)
    single = (
        (line, (query_id, rank, passage_id))
        for line, (query_id, listed) in lists
        for rank, passage_id in enumerate(listed.split(","), start=1)
    )
    return read_rows(single, bad_rows, negative)
