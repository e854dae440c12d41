"""Last step of a split: queries, judgments and negatives are compared with each other and with the corpus."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydr.data.corpus import Corpus, hash_strings
from raydr.data.leakage import find_leaks
from raydr.data.readers.base import HARD_MINER
from raydr.data.rows import Quarantine, fold
from raydr.data.staging import PLACE, Finished, write_bad_rows
from raydr.data.tables import TableName, choose_queries, read_arrow, to_table, write_arrow
from raydr.store import Folder, Part
from raydr.store.building import write_and_record

#: Rows of a part of judgments or negatives.
_PART_ROWS = 100_000
#: Queries that are compared with the passage of the same id, to detect queries that are passages.
_OWN_TEXTS = 1_000
#: Miner of dropped pairs of a query and the passage with its id.
OWN_ID = "own id"
#: Miner of dropped pairs of a query and a positive of the same text under another query id.
SAME_QUERY = "same query"
_Table = TableName | Literal["dropped", "absent"]
#: Rows of the table queries, by id.
_Queries = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class SplitPlan:
    """Inputs and settings of the last step of a split.

    Args:
        split: name of the split.
        staged: names of the staged parts of each table.
        queries_repeat: whether the same query may be read many times, so that copies are merged.
        max_queries: maximum of queries; all if None.
        seed: seed of the choice of queries.
        part_rows: queries of a part.
        held_out: names of staged held-out queries, to find leaks into the training split; empty for other splits.
        leave_out_leaked: whether leaked queries are left out.
        skip_own_id: whether the passage with a query's id is no negative of it.
        paths: full paths of the sources by their short names, for messages.
    """

    split: str
    staged: Mapping[TableName, Sequence[str]]
    queries_repeat: bool
    max_queries: int | None
    seed: int
    part_rows: int
    held_out: Sequence[str]
    leave_out_leaked: bool
    skip_own_id: bool
    paths: Mapping[str, str]


@dataclass(frozen=True)
class FinishedSplit(Finished):
    """Result of the last step of a split."""

    leaked: list[tuple[str, str]]
    """First training queries that are held out as well, each with the text of its held-out query."""


def finish_split(plan: SplitPlan, folder: Folder, corpus: Corpus) -> FinishedSplit:
    """Write the tables of a split, without bad rows.

    Bad rows are:

    - a query with the id of another query;
    - a judgment or negative of an unknown query or passage;
    - a judgment of a passage in another partition than its query;
    - two judgments of a pair that differ.

    Identical judgments and negatives are merged and counted. A passage that is judged not relevant is a negative of
    its query too. A positive of the same text under another query id is never a negative. Judgments of passages that
    a search cannot return are written to the table ``absent``: they count in measures, and training leaves them out.
    """
    return _Finisher(plan, folder, corpus).run()


@dataclass
class _Finisher:
    plan: SplitPlan
    folder: Folder
    corpus: Corpus

    def __post_init__(self) -> None:
        self.parts: dict[str, Part] = {}
        self.counts = {"merged": 0, "left_out": 0}
        self.bad = Quarantine()
        #: Judgments with a relevance of 0 or less.
        self.not_relevant: list[dict[str, Any]] = []
        self.positives: defaultdict[str, set[str]] = defaultdict(set)

    def run(self) -> FinishedSplit:
        queries = self._read_queries()
        chosen = set(queries)
        if self.plan.max_queries is not None:
            chosen = choose_queries(queries, self.plan.max_queries, self.plan.seed)
        leaked = self._find_leaked({query_id: row["text"] for query_id, row in queries.items() if query_id in chosen})
        if self.plan.leave_out_leaked:
            chosen = chosen - leaked.keys()
        kept = [row for query_id, row in queries.items() if query_id in chosen]
        self.counts |= {"queries": len(kept), "leaked": len(leaked)}
        for partition in sorted({row["partition"] or "" for row in kept}):
            self._write("queries", [row for row in kept if (row["partition"] or "") == partition], partition)
        judged = self._judge(queries, chosen)
        self.counts["queries_without_positive"] = len(chosen - judged)
        self._own_passages([row for row in kept if row["query_id"] in judged])
        self._same_queries(kept)
        self._negatives(queries, chosen)
        write_bad_rows(self.folder, f"split-{self.plan.split}", self.bad.files.values())
        examples = [(queries[query_id]["text"], text) for query_id, text in list(leaked.items())[:3]]
        return FinishedSplit(self.parts, self.counts, self.bad.count, self.bad.examples, examples)

    def _find_leaked(self, texts: Mapping[str, str]) -> dict[str, str]:
        """Return the held-out text of each query that is held out too, by the query's id."""
        held_out = [text for name in self.plan.held_out for text in self._read(name)["text"].to_pylist()]
        ids = list(texts)
        leaks = find_leaks(list(texts.values()), held_out) if held_out else {}
        return {ids[at]: held_out[other] for at, other in leaks.items()}

    def _read_queries(self) -> dict[str, dict[str, Any]]:
        queries: dict[str, dict[str, Any]] = {}
        for table in self._staged("queries"):
            for row in table.to_pylist():
                first = queries.setdefault(row["query_id"], row)
                if first is row:
                    continue
                same = first["text"] == row["text"] and first["answers"] == row["answers"]
                if same and self.plan.queries_repeat:
                    self.counts["merged"] += 1
                    continue
                different = "" if same else " with another text or other answers"
                where = f"{self._path(first)}:{first['line']}"
                self._refuse(row, f"duplicate query id {row['query_id']!r}, first at {where}{different}")
        return queries

    def _judge(self, known: _Queries, chosen: set[str]) -> set[str]:
        """Write the judgments; return the chosen queries that have a positive in the corpus."""
        seen: dict[tuple[str, str], tuple[int, str, int]] = {}
        rows: list[dict[str, Any]] = []
        absent: list[dict[str, Any]] = []
        for table in self._staged("qrels"):
            for row, is_known in self._known_rows(table, known, is_judged=True):
                pair = (row["query_id"], row["passage_id"])
                place = (row["relevance"], self._path(row), row["line"])
                if self._is_own(row):
                    self._refuse(row, f"query {pair[0]!r} is judged with itself, which data.skip_own_id leaves out")
                    continue
                first = seen.setdefault(pair, place)
                if first is not place and first[0] == place[0]:
                    self.counts["merged"] += 1
                elif first is not place:
                    judgment = f"judgment {place[0]} of query {pair[0]!r} and passage {pair[1]!r}"
                    self._refuse(row, f"{judgment} differs from {first[0]} at {first[1]}:{first[2]}")
                elif row["query_id"] not in chosen:
                    self.counts["left_out"] += 1
                else:
                    (rows if is_known else absent).append(row)
        self._write("qrels", rows)
        self._write("absent", absent)
        self.not_relevant = [row for row in rows if row["relevance"] <= 0]
        for row in rows:
            if row["relevance"] > 0:
                self.positives[row["query_id"]].add(row["passage_id"])
        self.counts["absent"] = len(absent)
        self.counts |= {"judgments": len(rows), "positives": sum(row["relevance"] > 0 for row in rows)}
        return set(self.positives)

    def _own_passages(self, queries: Sequence[Mapping[str, Any]]) -> None:
        """Drop pairs of a query and the passage with its id, or count the first queries that equal this passage."""
        if not self.plan.skip_own_id:
            queries = queries[:_OWN_TEXTS]
        rows = self.corpus.find([query["query_id"] for query in queries])
        own = np.flatnonzero(rows >= 0).tolist()
        if self.plan.skip_own_id:
            ids = [queries[at]["query_id"] for at in own]
            self._write(
                "dropped", [{"query_id": query_id, "passage_id": query_id, "miner": OWN_ID} for query_id in ids]
            )
            return
        # Numeric ids are often equal where the texts differ.
        texts = self.corpus.texts(rows[own]).texts
        self.counts["own_passages"] = sum(queries[at]["text"] == text for at, text in zip(own, texts, strict=True))

    def _same_queries(self, queries: Sequence[Mapping[str, Any]]) -> None:
        """Drop the positives of queries with the same text from each other's negatives."""
        by_text: defaultdict[str, list[str]] = defaultdict(list)
        for query in queries:
            by_text[fold(query["text"])].append(query["query_id"])
        rows: list[dict[str, Any]] = []
        for ids in by_text.values():
            positives = sorted(set().union(*(self.positives.get(query_id, ()) for query_id in ids)))
            for query_id in ids if len(ids) > 1 else ():
                others = [passage_id for passage_id in positives if passage_id not in self.positives.get(query_id, ())]
                rows += ({"query_id": query_id, "passage_id": other, "miner": SAME_QUERY} for other in others)
                if len(rows) >= _PART_ROWS:
                    self._write("dropped", rows)
                    rows = []
        self._write("dropped", rows)

    def _negatives(self, known: _Queries, chosen: set[str]) -> None:
        """Write the negatives part by part; a file of triples may have hundreds of millions."""
        self.counts["negatives"] = 0
        hashes: list[NDArray[np.uint64]] = []
        for table in self._all_negatives():
            pairs = zip(*(table[name].to_pylist() for name in ("query_id", "passage_id", "miner")), strict=True)
            # With the lengths of the ids, since ids may have any characters.
            hashes.append(hash_strings([f"{len(pair[0])}\t{len(pair[1])}\t{''.join(pair)}" for pair in pairs]))
        if not hashes:
            return
        is_first = np.zeros(sum(map(len, hashes)), dtype=np.bool_)
        is_first[np.unique(np.concatenate(hashes), return_index=True)[1]] = True
        start = 0
        for table in self._all_negatives():
            is_new = pa.array(is_first[start : start + len(table)])
            start += len(table)
            self.counts["merged"] += len(table) - is_new.true_count
            good = [row for row, _ in self._known_rows(table.filter(is_new), known)]
            rows = [row for row in good if row["query_id"] in chosen and not self._is_own(row)]
            self.counts["left_out"] += len(good) - len(rows)
            self.counts["negatives"] += len(rows)
            self._write("negatives", rows)

    def _all_negatives(self) -> Iterator[pa.Table]:
        """Yield the staged negatives, then the passages that are judged not relevant, ranked by row."""
        yield from self._staged("negatives")
        if self.not_relevant:
            ranks: Counter[str] = Counter()
            rows = []
            for row in self.not_relevant:
                ranks[row["query_id"]] += 1
                rows.append({**row, "miner": HARD_MINER, "rank": ranks[row["query_id"]]})
            table = to_table("negatives", rows)
            for field in PLACE:
                table = table.append_column(field, pa.array([row[field.name] for row in rows], field.type))
            yield table

    def _known_rows(
        self, table: pa.Table, known: _Queries, is_judged: bool = False
    ) -> Iterator[tuple[dict[str, Any], bool]]:
        """Yield the rows of known queries, and whether a search for the query may return the passage.

        All other rows are bad. A negative of an unknown passage is left out. A judgment of an unknown passage, or of a
        passage in another partition, is bad and yielded.
        """
        rows = self.corpus.find(table["passage_id"].to_pylist())
        partitions = self.corpus.partitions(rows)
        for row, at, partition in zip(table.to_pylist(), rows, partitions, strict=True):
            if row["query_id"] not in known:
                self._refuse(row, f"unknown query id {row['query_id']!r}: no such query in split {self.plan.split}")
            elif at < 0:
                self._refuse(row, f"unknown passage id {row['passage_id']!r}: no such passage in the corpus")
                if is_judged:
                    yield row, False
            elif is_judged and (own := known[row["query_id"]]["partition"]) and partition != own:
                where = f"of partition {partition!r}" if partition else "of none"
                self._refuse(row, f"passage {row['passage_id']!r} is {where}, and its query of partition {own!r}")
                yield row, False
            else:
                yield row, True

    def _is_own(self, row: Mapping[str, Any]) -> bool:
        return self.plan.skip_own_id and row["query_id"] == row["passage_id"]

    def _refuse(self, row: Mapping[str, Any], reason: str) -> None:
        content = {key: value for key, value in row.items() if key not in ("source", "line") and value is not None}
        self.bad.add(self._path(row), row["line"], reason, content)

    def _path(self, row: Mapping[str, Any]) -> str:
        return self.plan.paths.get(row["source"], row["source"])

    def _staged(self, table: TableName) -> Iterator[pa.Table]:
        for name in sorted(self.plan.staged.get(table, ())):
            yield self._read(name)

    def _read(self, name: str) -> pa.Table:
        return read_arrow(self.folder.localize(name))

    def _write(self, table: _Table, rows: list[dict[str, Any]], partition: str = "") -> None:
        under = "/".join(filter(None, (table, self.plan.split, partition))) + "/"
        part_rows = self.plan.part_rows if table == "queries" else _PART_ROWS
        for start in range(0, len(rows), part_rows):
            written = to_table(table, rows[start : start + part_rows])
            name = f"{under}part-{sum(part.startswith(under) for part in self.parts):05d}.arrow"
            self.parts[name] = write_and_record(self.folder, name, len(written), partial(write_arrow, written))
