"""Interface of writers: a writer names the files of a format, and writes each from a data set and its negatives."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.component import Component
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset, read_split
from raydr.data.rows import columns_of
from raydr.data.tables import RANDOM_MINER
from raydr.errors import DataError
from raydr.store import Artifact

#: Prefix of the counts of rows that a format cannot hold.
LEFT_OUT = "left out: "

_LINE_BREAK = re.compile(r"[\r\n]+")
_TAB = re.compile(r"\t+")


@dataclass(frozen=True)
class OutputFile:
    """File of an export, written by a task.

    Args:
        name: name in the output folder.
        role: the writer's name for the content.
        split: split of the file; empty for all splits.
    """

    name: str
    role: str
    split: str = ""


@dataclass(frozen=True)
class Negative:
    """Negative in an export."""

    passage_id: str
    miner: str
    score: float | None


@dataclass(frozen=True)
class Question:
    """Query with its judgments and negatives."""

    query_id: str
    text: str
    answers: list[str] | None
    #: Judgments by passage id, relabelled negatives included.
    judgments: dict[str, int]
    negatives: list[Negative]

    @property
    def positives(self) -> list[str]:
        return [passage_id for passage_id, relevance in self.judgments.items() if relevance > 0]


class Exported:
    """Corpus, data set, and mined or judged negatives, for an export.

    Rows with the action keep or down_weight are negatives, relabel rows are further positives. Drop rows are left out,
    even where the data set has the same pair among its negatives. A positive, a dropped passage or a copy of either
    is never a negative of its query.

    A pair that several miners proposed is written once. Mined negatives come before the data set's own, each in the
    order of ranks; passages drawn at random come last.
    """

    def __init__(self, corpus: Corpus, dataset: Dataset, negatives: Artifact | None) -> None:
        self.corpus = corpus
        self.dataset = dataset
        self.negatives = negatives

    @property
    def splits(self) -> list[str]:
        return self.dataset.splits

    def has_negatives(self, split: str) -> bool:
        artifacts = [self.dataset.artifact, *([self.negatives] if self.negatives else [])]
        return any(artifact.rows(f"negatives/{split}") for artifact in artifacts)

    def passages(self) -> Iterator[tuple[str, str, str]]:
        """Yield id, title and text of every passage, one part in memory at a time."""
        for part in self.corpus.parts():
            for batch in part.to_batches(max_chunksize=10_000):
                yield from zip(*(batch[name].to_pylist() for name in ("passage_id", "title", "text")), strict=True)

    def questions(self, split: str) -> Iterator[Question]:
        """Yield the queries of a split in their order."""
        queries = self.dataset.queries(split)
        judged_rows = self._with_content(self.dataset.qrels(split))
        judgments = _by_query(judged_rows, queries, ["passage_id", "relevance", "content"], [])
        columns = ["passage_id", "miner", "score", "action", "content"]
        proposed_rows = self._with_content(self._candidates(split))
        candidates = _by_query(proposed_rows, queries, columns, ["origin", "is_random", "rank"])
        rows = (row for batch in queries.to_batches(max_chunksize=10_000) for row in batch.to_pylist())
        for query, judged, proposed in zip(rows, judgments, candidates, strict=True):
            relevance = {row["passage_id"]: row["relevance"] for row in judged}
            actions: dict[str, set[str]] = {}
            for row in proposed:
                actions.setdefault(row["passage_id"], set()).add(row["action"])
            for passage_id, actions_of_passage in actions.items():
                if "relabel" in actions_of_passage and relevance.get(passage_id, 0) <= 0:
                    relevance[passage_id] = 1
            first = {row["passage_id"]: row for row in reversed(proposed)}
            # As in training, passages with the same title and text are the same passage.
            never = {
                row["content"]
                for row in [*judged, *proposed]
                if relevance.get(row["passage_id"], 0) > 0 or "drop" in actions.get(row["passage_id"], ())
            }
            negatives = [
                Negative(passage_id, first[passage_id]["miner"], first[passage_id]["score"])
                for passage_id in actions
                if first[passage_id]["content"] not in never
            ]
            yield Question(query["query_id"], query["text"], query["answers"], relevance, negatives)

    def _with_content(self, table: pa.Table) -> pa.Table:
        """Append the column ``content``: hashes of the passages' titles and texts, which copies share."""
        contents = self.corpus.content_hashes(self.corpus.rows_of_column(table["passage_id"]))
        return table.append_column("content", pa.array(contents))

    def _candidates(self, split: str) -> pa.Table:
        """Return all negatives with the columns ``origin`` and ``is_random``.

        ``origin`` is 0 for mined and judged negatives, 1 for the data set's own. ``is_random`` is 1 for random
        negatives of the data set, whose ranks are of a separate list.
        """
        mined = self.negatives and read_split(self.negatives, "negatives", split)
        own = [self.dataset.negatives(split), self.dataset.dropped(split)]
        table = pa.concat_tables([*([mined] if mined else []), *own])
        origin = np.arange(len(table)) >= (len(mined) if mined else 0)
        table = table.append_column("origin", pa.array(origin.astype(np.int8)))
        return table.append_column("is_random", pc.equal(table["miner"], RANDOM_MINER).cast(pa.int8()))


def _by_query(
    table: pa.Table, queries: pa.Table, columns: list[str], order: list[str]
) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each query, in the order of ``queries``; within a query sorted by ``order``, then by row."""
    at = pc.index_in(table["query_id"], value_set=queries["query_id"].combine_chunks())
    table = table.select([*columns, *order]).append_column("at", at).filter(pc.is_valid(at))
    keys = [table[name].to_numpy() for name in reversed(order)]
    table = table.take(pa.array(np.lexsort([*keys, table["at"].to_numpy()])))
    starts = np.searchsorted(table["at"].to_numpy(), np.arange(len(queries) + 1))
    table = table.select(columns)
    for start, stop in pairwise(starts):
        yield table.slice(start, stop - start).to_pylist() if stop > start else []


class Writer(Component):
    """Base of the writers, a class per format."""

    package: ClassVar[str] = "raydr.data.writers"
    kind: ClassVar[str] = "export format"

    @abstractmethod
    def files(self, exported: Exported) -> list[OutputFile]:
        """Return the files to write. Runs on the driver; must not read the data."""

    @abstractmethod
    def write(self, file: OutputFile, exported: Exported, out: TextIO, counts: Counter[str]) -> None:
        """Write a file. Runs in a worker.

        Args:
            file: file to write, from :meth:`files`.
            exported: data to write.
            out: file, open for writing.
            counts: counter of written ``passages``, ``queries``, ``positives`` and ``negatives``, and of rows that the
                format cannot hold, under names that start with :data:`LEFT_OUT`.

        Raises:
            DataError: a value cannot be written in this format without a change.
        """


def to_single_line(text: str, what: str, fold: bool, tabs_too: bool) -> str:
    """Replace each run of line breaks (and of tabs) in a text by a space.

    Raises:
        DataError: the text has line breaks (or tabs), and ``fold`` is not set.

    >>> to_single_line("a\\n\\nb", "passage 'p'", fold=True, tabs_too=False)
    'a b'
    """
    separator = "line break" if _LINE_BREAK.search(text) else "tab" if tabs_too and "\t" in text else ""
    if not separator:
        return text
    if not fold:
        raise DataError(
            f"the text of {what} has a {separator}, which this format cannot hold: fold_whitespace (--fold-whitespace) "
            "writes spaces instead, and the format beir keeps texts as they are"
        )
    text = _LINE_BREAK.sub(" ", text)
    return _TAB.sub(" ", text) if tabs_too else text


def plain_id(value: str) -> str:
    """Return an id that a column can hold.

    Raises:
        DataError: the id has white space in it.
    """
    if columns_of(value) != [value]:
        raise DataError(
            f"the id {value!r} has white space in it, which this format cannot hold: export to dpr, or mend the ids"
        )
    return value
