"""Checks of values in input files; unusable rows are counted, and kept with file, line and reason."""

from __future__ import annotations

import ast
import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeVar

from pydantic import Field

from raydr.component import Config
from raydr.errors import DataError

T = TypeVar("T")
#: Maximum of a grade of relevance; trec_eval's time for nDCG grows with its square.
HIGHEST_GRADE = 10_000
#: White space between columns and in blank lines. Other spaces of Unicode are part of a text or an id.
WHITE_SPACE = " \t\n\r\v\f"
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


class RowError(ValueError):
    """Reason why a row cannot be used; readers turn it into a bad row."""


def text_field(row: Mapping[str, Any], key: str, default: str | None = None) -> str:
    """Return the string under ``key``; ``default`` where it is absent or null.

    >>> text_field({"text": "a"}, "text"), text_field({}, "title", "")
    ('a', '')
    """
    value = row.get(key)
    if value is None and default is not None:
        return default
    if value is None:
        raise absent(row, key)
    if not isinstance(value, str):
        raise RowError(f"{key!r} must be a string, found {value!r:.80}")
    return value


def passage_field(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return ``title`` and ``text`` of a passage; each may be absent or null where the other is not blank.

    >>> passage_field({"title": "Bern", "text": None}), passage_field({"text": "A city."})
    (('Bern', ''), ('', 'A city.'))
    """
    title = text_field(row, "title", default="")
    return title, text_field(row, "text", default="" if title.strip() else None)


def join_passage(title: str, text: str, separator: str = " ") -> str:
    """Put a title before its text; a text without a title stays as it is."""
    return f"{title}{separator}{text}" if title else text


def absent(row: Mapping[str, Any], key: str) -> RowError:
    """Return the error for a missing value under ``key``.

    >>> str(absent({"id": 1, "text": None}, "text")), str(absent({"id": 1}, "_id"))
    ("'text' is null", "no '_id' (it has id)")
    """
    if key in row:
        return RowError(f"{key!r} is null")
    return RowError(f"no {key!r} (it has {', '.join(map(str, row)) or 'nothing'})")


def id_field(row: Mapping[str, Any], key: str) -> str:
    """Return the id under ``key``, as :func:`id_of` does."""
    value = row.get(key)
    if value is None:
        raise absent(row, key)
    return id_of(value, key)


def filled_field(row: Mapping[str, Any], key: str) -> str:
    """Return the string under ``key``, which must not be blank."""
    text = text_field(row, key)
    if not text.strip():
        raise RowError(f"empty text in {key!r}")
    return text


def id_of(value: Any, key: str) -> str:
    """Return an id as a string; a number keeps its digits as they are written.

    >>> id_of(12, "_id"), id_of("12", "_id")
    ('12', '12')
    """
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise RowError(f"{key!r} must be a string that is not empty, or an integer; found {value!r:.80}")


def fold(text: str) -> str:
    r"""Normalise Unicode form, case and white space of a text, so that copies are equal.

    >>> fold("Cafe\u0301  au Lait") == fold("caf\u00e9 au lait")
    True
    """
    return " ".join((text if text.isascii() else unicodedata.normalize("NFC", text)).lower().split())


def content_id(*texts: str) -> str:
    """Make an id from the content: equal texts share it.

    >>> content_id("title", "text") == content_id("title", "text"), len(content_id("text"))
    (True, 20)
    """
    digest = hashlib.blake2b(digest_size=10)
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        digest.update(f"{len(content)}:".encode("ascii"))
        digest.update(content)
    return digest.hexdigest()


def number_of(value: Any, key: str) -> float:
    """Return a finite number, also from decimal digits in a string.

    >>> number_of(2, "score"), number_of("-1.5e1", "score")
    (2.0, -15.0)

    Raises:
        RowError: the value is no finite number, but NaN, an infinity, a boolean or a word.
    """
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if is_number or (isinstance(value, str) and _NUMBER.fullmatch(value.strip(WHITE_SPACE))):
        with suppress(OverflowError):
            number = float(value)
            if math.isfinite(number):
                return number
    raise RowError(f"{key!r} must be a number, found {value!r:.80}")


def relevance_of(value: Any) -> int:
    """Return a judgment as an integer; ``1.0`` counts as 1.

    >>> relevance_of("2"), relevance_of("1.0")
    (2, 1)
    """
    with suppress(RowError):
        number = number_of(value, "relevance")
        if is_grade(number):
            return int(number)
    raise RowError(f"the relevance must be an integer from {-HIGHEST_GRADE} to {HIGHEST_GRADE}, found {value!r:.80}")


def is_grade(number: float) -> bool:
    """Return whether a number can be a grade of relevance."""
    return number.is_integer() and abs(number) <= HIGHEST_GRADE


def columns_of(line: str) -> list[str]:
    """Split at ASCII white space, as in TREC's files: an id may have other spaces in it.

    >>> columns_of("q1 0\\tdoc\\u00a07  1\\r")
    ['q1', '0', 'doc\\xa07', '1']
    """
    return [column for column in re.split(f"[{WHITE_SPACE}]+", line) if column]


def is_blank(line: str) -> bool:
    """Return whether a line has nothing but ASCII white space in it."""
    return not line.strip(WHITE_SPACE)


def list_of(kind: type[T], value: Any, what: str) -> list[T]:
    """Return a list whose values all have a type.

    Args:
        kind: type of the values.
        value: value to check.
        what: name and expected values of the list, for the message.

    >>> list_of(str, ["a"], "answers must be a list of strings")
    ['a']
    """
    if not isinstance(value, list) or not all(isinstance(entry, kind) for entry in value):
        raise RowError(f"{what}, found {value!r:.80}")
    return value


def answers_of(value: Any) -> list[str] | None:
    """Return the answer strings; None without a list of answers."""
    return None if value is None else list_of(str, value, "answers must be a list of strings")


def written_answers(text: str) -> list[str]:
    """Parse answers in a JSON or Python list of strings; nothing is run.

    >>> written_answers('["a", "b"]'), written_answers("['it\\\\'s']")
    (['a', 'b'], ["it's"])
    """
    value = None
    for parse in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            value = parse(text.strip())
            break
    answers = answers_of(value)
    if answers is None:
        raise RowError(f"answers must be a list of strings such as ['a', 'b'], found {text!r:.80}")
    return answers


class MentionConfig(Config):
    """Settings that turn a mention and its context into a query's text."""

    window: int = Field(default=96, ge=1)
    """Words of a query, the mention included. Half of the other words stand before the mention and half after it; a
    short side leaves its room to the other. A longer mention stays whole, alone."""

    markers: tuple[str, str] = ("[", "]")
    """Words before and after the mention. A tokenizer cuts them into pieces like other words, unless they are special
    tokens of the checkpoint."""

    def text(self, before: Sequence[str], mention: Sequence[str], after: Sequence[str]) -> str:
        """Return the query of a mention, from its words.

        >>> MentionConfig(window=5).text(["a", "b", "c"], ["M"], ["d", "e", "f"])
        'b c [ M ] d e'
        >>> MentionConfig(window=5).text(["a", "b", "c", "d"], ["M"], ["e"])
        'b c d [ M ] e'
        >>> MentionConfig(window=1).text(["a"], ["M", "N"], ["b"])
        '[ M N ]'
        """
        room = max(0, self.window - len(mention))
        num_before = min(len(before), max(room // 2, room - len(after)))
        start, end = self.markers
        left = before[len(before) - num_before :]
        return " ".join([*left, start, *mention, end, *after[: room - num_before]])


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
    """Bad rows of a file.

    >>> bad = BadRows("train.jsonl", keep=1)
    >>> bad.add(3, "broken JSON", "{...")
    >>> bad.add(9, "empty text", "")
    >>> bad.count, str(bad.kept[0])
    (2, 'train.jsonl:3: broken JSON')
    """

    file: str
    #: Maximum of rows that are kept in full; the others are only counted.
    keep: int = 10_000
    count: int = 0
    kept: list[BadRow] = field(default_factory=list)
    #: Remarks on the file as a whole, for people.
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
        """Some of the bad rows, for messages."""
        return [row for bad_rows in self.files.values() for row in bad_rows.kept[:5]][:5]


def check_allowed(count: int, examples: list[BadRow], max_bad_rows: int, quarantine: str) -> None:
    """Check that no more rows are bad than the user allows.

    Raises:
        DataError: more rows are bad; the message has the first of them, the quarantine file, and the setting to change.
    """
    if count > max_bad_rows:
        shown = "\n  ".join(str(row) for row in examples[:5])
        raise DataError(
            f"{count} bad row{'' if count == 1 else 's'}, allowed are {max_bad_rows} (data.max_bad_rows):\n  {shown}\n"
            f"all of them with their content: {quarantine}. "
            f"Mend the input, or leave them out: --set data.max_bad_rows={count}"
        )
