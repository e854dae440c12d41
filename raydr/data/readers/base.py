"""What a reader is: it lists the files of a data set, and turns each into rows of raydr's tables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from raydr.component import Component
from raydr.data.quarantine import BadRows
from raydr.data.schema import TableName


@dataclass(frozen=True)
class Source:
    """One file to read in one task.

    Args:
        path: local path or fsspec URL; for readers without files, any name.
        role: what the file holds, in the reader's own words (``collection``, ``queries``, ...).
        split: the split it belongs to, empty for the corpus.
    """

    path: str
    role: str
    split: str = ""


@dataclass(frozen=True)
class Row:
    """One row for one table. ``values`` has the table's columns; ``line`` is where it was read, from 1."""

    table: TableName
    split: str
    values: dict[str, Any]
    line: int


class Reader(Component):
    """Base of the readers: one file a format."""

    package: ClassVar[str] = "raydr.data.readers"
    kind: ClassVar[str] = "reader"
    #: True if the same passage may be read many times (contexts of questions): copies with the same id are merged.
    passages_repeat: ClassVar[bool] = False

    @abstractmethod
    def sources(self) -> list[Source]:
        """The files to read, in a fixed order. Runs on the driver; must not read them.

        Raises:
            DataError: a file that must be there is missing; names it and what was expected.
        """

    @abstractmethod
    def read(self, source: Source, bad_rows: BadRows) -> Iterator[Row]:
        """Rows of one file, streamed. Runs in a worker; malformed rows go to ``bad_rows`` with a reason."""

    def content_key(self) -> dict[str, Any]:
        """What identifies the content in the fingerprint: the settings without paths."""
        return self.model_dump(exclude={"path"})
