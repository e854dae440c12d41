"""Rows that cannot be used: counted, kept with file, line and reason, never lost silently."""

from __future__ import annotations

from dataclasses import dataclass, field

from raydr.errors import DataError


@dataclass(frozen=True)
class BadRow:
    file: str
    line: int
    reason: str
    content: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


@dataclass
class BadRows:
    """Collects the bad rows of one file.

    >>> bad = BadRows("train.jsonl", keep=1)
    >>> bad.add(3, "broken JSON", "{...")
    >>> bad.add(9, "empty text", "")
    >>> bad.count, str(bad.kept[0])
    (2, 'train.jsonl:3: broken JSON')
    """

    file: str
    #: How many rows are kept in full; the others are only counted.
    keep: int = 10_000
    count: int = 0
    kept: list[BadRow] = field(default_factory=list)
    #: What was decided for the file as a whole, for people.
    remarks: list[str] = field(default_factory=list)

    def add(self, line: int, reason: str, content: object = "") -> None:
        self.count += 1
        if len(self.kept) < self.keep:
            self.kept.append(BadRow(self.file, line, reason, str(content)[:500]))

    def extend(self, other: BadRows) -> None:
        """Add the bad rows of another file."""
        self.count += other.count
        self.kept.extend(other.kept[: max(0, self.keep - len(self.kept))])


class Quarantine:
    """Bad rows of several files."""

    def __init__(self) -> None:
        self.files: dict[str, BadRows] = {}

    def add(self, file: str, line: int, reason: str, content: object) -> None:
        self.files.setdefault(file, BadRows(file)).add(line, reason, content)

    @property
    def count(self) -> int:
        return sum(bad_rows.count for bad_rows in self.files.values())

    @property
    def examples(self) -> list[BadRow]:
        """Return some of the bad rows, for messages."""
        return [row for bad_rows in self.files.values() for row in bad_rows.kept[:5]][:5]


def check_allowed(count: int, examples: list[BadRow], max_bad_rows: int, quarantine: str) -> None:
    """Fail if more rows are bad than the user allows.

    Raises:
        DataError: with the first bad rows, the quarantine file, and the setting to change.
    """
    if count > max_bad_rows:
        shown = "\n  ".join(str(row) for row in examples[:5])
        raise DataError(
            f"{count} bad row{'' if count == 1 else 's'}, allowed are {max_bad_rows} (data.max_bad_rows):\n  {shown}\n"
            f"all of them with their content: {quarantine}. "
            f"Mend the input, or leave them out: --set data.max_bad_rows={count}"
        )
