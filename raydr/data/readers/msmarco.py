"""MS MARCO passage ranking: collection, queries, qrels, and triples or negatives, all tab-separated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from raydr.data.fields import RowError, id_of, relevance_of
from raydr.data.inputs import find_input
from raydr.data.lines import read_lines, read_tsv
from raydr.data.quarantine import BadRows
from raydr.data.readers.base import Reader, Row, Source

_MINER = "source:hard"


class MsmarcoReader(Reader):
    """MS MARCO's files. In file names, ``{split}`` stands for the split; each may also have ``.gz`` at its end."""

    name: Literal["msmarco"] = "msmarco"
    path: str
    """The folder, local or an fsspec URL."""

    splits: Annotated[list[str], Field(min_length=1)] = ["train", "dev"]
    """Splits to read."""

    collection: str = "collection.tsv"
    """Pid, text."""

    queries: str = "queries.{split}.tsv"
    """Qid, text."""

    qrels: str = "qrels.{split}.tsv"
    """Qid, 0, pid, relevance. Empty: the judgments are the triples' positives."""

    triples: dict[str, str] = {}
    """By split: qid, pid of the positive, pid of the negative."""

    negatives: dict[str, str] = {}
    """By split: qid, pids of its hard negatives separated by commas, best first."""

    def sources(self) -> list[Source]:
        collection = find_input(self.path, self.collection, "passages (pid, text)")
        found = [Source(collection, "collection", tables=("passages",))]
        for split in self.splits:
            queries = find_input(self.path, self.queries.format(split=split), f"queries of split {split}")
            found.append(Source(queries, "queries", split, ("queries",)))
            if self.qrels:
                qrels = find_input(self.path, self.qrels.format(split=split), f"judgments of split {split}")
                found.append(Source(qrels, "qrels", split, ("qrels",)))
            if split in self.triples:
                triples = find_input(self.path, self.triples[split], "triples (qid, pid, pid)")
                found.append(
                    Source(triples, "triples", split, ("negatives",) if self.qrels else ("qrels", "negatives"))
                )
            if split in self.negatives:
                negatives = find_input(self.path, self.negatives[split], "negatives (qid, pids)")
                found.append(Source(negatives, "negatives", split, ("negatives",)))
        return found

    def read(self, source: Source, bad_rows: BadRows) -> Iterator[Row]:
        read = {
            "collection": _read_collection,
            "queries": _read_queries,
            "qrels": _read_qrels,
            "triples": _read_triples if self.qrels else _read_judged_triples,
            "negatives": _read_negatives,
        }
        return read[source.role](source.path, source.split, bad_rows)

    def content_key(self) -> dict[str, Any]:
        return {"name": self.name}


def _read_collection(path: str, split: str, bad_rows: BadRows) -> Iterator[Row]:
    for line, (passage_id, text) in read_tsv(path, ("pid", "text"), bad_rows):
        yield Row("passages", "", {"passage_id": passage_id, "title": "", "text": text}, line)


def _read_queries(path: str, split: str, bad_rows: BadRows) -> Iterator[Row]:
    for line, (query_id, text) in read_tsv(path, ("qid", "text"), bad_rows):
        yield Row("queries", split, {"query_id": query_id, "text": text}, line)


def _read_qrels(path: str, split: str, bad_rows: BadRows) -> Iterator[Row]:
    for line, text in read_lines(path, bad_rows):
        # TREC qrels are separated by any white space; MS MARCO's by tabs.
        fields = text.split()
        if not fields:
            continue
        if len(fields) != 4:
            bad_rows.add(line, f"expected 4 columns (qid, 0, pid, relevance), found {len(fields)}", text)
            continue
        try:
            values = {"query_id": fields[0], "passage_id": fields[2], "relevance": relevance_of(fields[3])}
        except RowError as error:
            bad_rows.add(line, str(error), text)
        else:
            yield Row("qrels", split, values, line)


def _read_triples(path: str, split: str, bad_rows: BadRows) -> Iterator[Row]:
    return (row for row in _read_judged_triples(path, split, bad_rows) if row.table == "negatives")


def _read_judged_triples(path: str, split: str, bad_rows: BadRows) -> Iterator[Row]:
    judged: set[tuple[str, str]] = set()
    ranks: Counter[str] = Counter()
    for line, (query_id, positive, negative) in read_tsv(path, ("qid", "pid+", "pid-"), bad_rows):
        if (query_id, positive) not in judged:
            judged.add((query_id, positive))
            yield Row("qrels", split, {"query_id": query_id, "passage_id": positive, "relevance": 1}, line)
        ranks[query_id] += 1
        values = {"query_id": query_id, "passage_id": negative, "miner": _MINER, "rank": ranks[query_id]}
        yield Row("negatives", split, values, line)


def _read_negatives(path: str, split: str, bad_rows: BadRows) -> Iterator[Row]:
    for line, (query_id, listed) in read_tsv(path, ("qid", "pid,pid,..."), bad_rows):
        for rank, passage_id in enumerate(listed.split(","), start=1):
            try:
                values = {"query_id": query_id, "passage_id": id_of(passage_id.strip(), "pid"), "miner": _MINER}
            except RowError as error:
                bad_rows.add(line, str(error), f"{query_id}\t{listed}")
            else:
                yield Row("negatives", split, {**values, "rank": rank}, line)
