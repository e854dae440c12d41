"""Interface of readers: a reader lists the files of a data set and turns each into rows of raydr's tables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from raydr.component import Component
from raydr.data.inputs import checksum
from raydr.data.ranges import ALL_LINES, Division, LineRange
from raydr.data.rows import BadRows, RowError
from raydr.data.tables import TableName

DATASET_TABLES: tuple[TableName, ...] = ("queries", "qrels", "negatives")
ALL_TABLES: tuple[TableName, ...] = ("passages", *DATASET_TABLES)
#: Miner of hard negatives that came with the data.
HARD_MINER = "source:hard"
RecordT = TypeVar("RecordT")
#: Artefact that rows are read into: passages into the corpus, all other tables into the data set.
Target = Literal["corpus", "dataset"]


@dataclass(frozen=True)
class Source:
    """File that a task reads.

    Args:
        path: local path or fsspec URL; for readers without files, any name.
        role: the reader's name for the content (``collection``, ``queries``, ...).
        split: split of the file; empty for the corpus.
        tables: tables for which the file has rows; the corpus's fingerprint covers only files with passages.
        also: other files that the reader needs for this file.
        divided: how tasks may read ranges of the file, in which each line or row is a passage at most.
        lines: lines to read.
    """

    path: str
    role: str
    split: str = ""
    tables: tuple[TableName, ...] = ALL_TABLES
    also: tuple[str, ...] = ()
    divided: Division = ""
    lines: LineRange = ALL_LINES

    @property
    def has_only_passages(self) -> bool:
        return self.tables == ("passages",)

    def feeds(self, target: Target) -> bool:
        """Return whether the file has rows for an artefact."""
        return "passages" in self.tables if target == "corpus" else not self.has_only_passages


@dataclass(frozen=True)
class Row:
    """Row of a table. ``values`` has the table's columns; ``line`` is the row's line in the source, from 1.

    A query whose ``split`` is empty belongs to no split: it is counted and left out.
    """

    table: TableName
    split: str
    values: dict[str, Any]
    line: int

    @classmethod
    def passage(cls, passage_id: str, title: str, text: str, line: int, **further: Any) -> Row:
        """Make a passage's row; ``further`` may hold its ``partition``, see :mod:`raydr.data.parts`."""
        return cls("passages", "", {"passage_id": passage_id, "title": title, "text": text, **further}, line)

    @classmethod
    def query(
        cls, split: str, query_id: str, text: str, line: int, answers: list[str] | None = None, **further: Any
    ) -> Row:
        """Make a query's row; ``further`` may hold its ``partition`` and its ``category``."""
        return cls("queries", split, {"query_id": query_id, "text": text, "answers": answers, **further}, line)

    @classmethod
    def judgment(cls, split: str, query_id: str, passage_id: str, line: int, relevance: int = 1) -> Row:
        return cls("qrels", split, {"query_id": query_id, "passage_id": passage_id, "relevance": relevance}, line)

    @classmethod
    def negative(cls, split: str, query_id: str, passage_id: str, line: int, rank: int, **further: Any) -> Row:
        """Make the row of a negative that came with the data; hard by default."""
        values = {"query_id": query_id, "passage_id": passage_id, "miner": HARD_MINER, "rank": rank, **further}
        return cls("negatives", split, values, line)


def read_rows(
    records: Iterable[tuple[int, RecordT]],
    bad_rows: BadRows,
    rows_of: Callable[[RecordT, int], Iterable[Row]],
    unit: str = "",
) -> Iterator[Row]:
    """Yield the rows of each record; an unusable record is a bad row as a whole.

    Args:
        records: records with their lines.
        bad_rows: collector of records for which ``rows_of`` raises a :class:`~raydr.data.rows.RowError`.
        rows_of: function from a record and its line to rows.
        unit: unit of the line's number, for messages, if it does not count lines.
    """
    for line, record in records:
        try:
            rows = list(rows_of(record, line))
        except RowError as error:
            content = "\t".join(map(str, record)) if isinstance(record, list | tuple) else record
            bad_rows.add(line, f"{unit} {line}: {error}" if unit else str(error), content)
        else:
            yield from rows


class Reader(Component):
    """Base of the readers, a module per format."""

    package: ClassVar[str] = "raydr.data.readers"
    kind: ClassVar[str] = "reader"
    package_needed: ClassVar[str] = ""
    """Python package that the reader needs beside raydr's own; may be empty."""

    identifying: ClassVar[frozenset[str]] = frozenset()
    """Settings that identify the content beside the sources' checksums; empty: all but the path."""

    passages_repeat: ClassVar[bool] = False
    """Whether the same passage may be read many times (contexts of questions), so that copies of an id are merged."""

    @abstractmethod
    def sources(self) -> list[Source]:
        """Return the files to read, in a fixed order. Runs on the driver; must not read them.

        Raises:
            DataError: a required file is missing; the message has its path and expected content.
        """

    @abstractmethod
    def read(self, source: Source, bad_rows: BadRows) -> Iterator[Row]:
        """Stream the rows of a file. Runs in a worker; malformed rows go to ``bad_rows`` with a reason."""

    def checksum(self, source: Source) -> str:
        """Return the identity of a source's content: a hash of the file's bytes. Runs in a worker.

        Readers without files override it.
        """
        return checksum(source.path)

    def content_key(self) -> dict[str, Any]:
        """Return the settings that identify the content in the fingerprint, see :attr:`identifying`."""
        return self.model_dump(include=set(self.identifying)) if self.identifying else self.model_dump(exclude={"path"})
