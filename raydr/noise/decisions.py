"""Decisions of people on pairs and candidates: an append-only file with a JSON line per click.

A line holds the reviewer, query, passage, label, texts and verdict. The verdict ``undo`` withdraws the reviewer's last
decision on that label. An incomplete last line, from a killed process, is ignored and overwritten; a last line that
lacks only its line break counts.
"""

from __future__ import annotations

import fcntl
import os
from codecs import BOM_UTF8
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field, ValidationError

from raydr.component import Config, findings
from raydr.errors import DataError
from raydr.seeding import stable_hash64
from raydr.store.filesystems import resolve_url

#: A pair is the label "this passage answers the query", a candidate negative "this passage does not".
Subject = Literal["pairs", "negatives"]
Verdict = Literal["right", "wrong", "unsure"]
Word = Literal["right", "wrong", "unsure", "undo"]


class Label(NamedTuple):
    """Subject of a decision: a query, a passage and their texts, labelled as a match or not."""

    subject: Subject
    split: str
    query_id: str
    passage_id: str
    texts: str

    @property
    def id(self) -> str:
        """Short id, for links and forms."""
        return f"{stable_hash64(*self):016x}"


def digest_texts(query: str, title: str, text: str) -> str:
    """Return a digest of the texts; a decision holds for these texts only, whatever their ids."""
    return f"{stable_hash64(query, title, text):016x}"


class Decision(Config):
    """A line of the file."""

    at: str
    """Time, in ISO 8601."""

    reviewer: str = Field(min_length=1, max_length=80)
    subject: Subject
    split: str
    query_id: str
    passage_id: str
    texts: str
    """Digest of the texts, see :func:`digest_texts`."""

    verdict: Word
    """``right`` if the label holds; ``wrong`` if it does not."""

    @property
    def label(self) -> Label:
        return Label(self.subject, self.split, self.query_id, self.passage_id, self.texts)


@dataclass(frozen=True)
class Decisions:
    """Content of a file of decisions.

    Args:
        lines: decisions in the order of the file.
        is_torn: whether the last line is incomplete.
    """

    lines: tuple[Decision, ...] = ()
    is_torn: bool = False

    @classmethod
    def parse(cls, content: bytes, where: str) -> Decisions:
        """Parse the content of a file; an editor may add a byte order mark, ``\\r`` and blank lines.

        Raises:
            DataError: a line is malformed; the message names it.
        """
        whole = content[: _end_of_lines(content)]
        lines = []
        for number, line in enumerate(whole.removeprefix(BOM_UTF8).split(b"\n"), start=1):
            if not line.strip():
                continue
            try:
                lines.append(Decision.model_validate_json(line))
            except ValidationError as error:
                raise DataError(
                    f"{where}, line {number}, is no decision ({'; '.join(findings(error))}): restore or remove it"
                ) from None
        return cls(tuple(lines), len(whole) < len(content))

    @classmethod
    def read(cls, file: str) -> Decisions:
        """Read a file by its path or URL; a missing file holds no decision.

        Raises:
            DataError: a line is malformed.
        """
        filesystem, path = resolve_url(file)
        return cls.parse(filesystem.cat_file(path), file) if filesystem.exists(path) else cls()

    def standing(self, reviewer: str | None = None) -> list[Decision]:
        """Return the last decision of each reviewer, or of ``reviewer``, on each label, in file order."""
        verdicts: dict[tuple[str, Label], list[tuple[int, Decision]]] = defaultdict(list)
        for number, decision in enumerate(self.lines):
            if reviewer is None or decision.reviewer == reviewer:
                words = verdicts[decision.reviewer, decision.label]
                if decision.verdict != "undo":
                    words.append((number, decision))
                elif words:
                    words.pop()
        return [
            decision
            for _, decision in sorted((words[-1] for words in verdicts.values() if words), key=lambda word: word[0])
        ]

    def settled(self, subject: Subject, split: str, unsure_is_right: bool = False) -> dict[Label, bool]:
        """Return whether each label is wrong, by majority of its reviewers.

        The result is sorted, so that it does not depend on the order of decisions.

        Args:
            subject, split: subject and split of the labels.
            unsure_is_right: whether ties, and labels of which all reviewers are unsure, count as right; else they are
                left out.
        """
        votes: Counter[Label] = Counter()
        for decision in self.standing():
            if (decision.subject, decision.split) == (subject, split):
                votes[decision.label] += {"wrong": 1, "right": -1}.get(decision.verdict, 0)
        return {label: votes[label] > 0 for label in sorted(votes) if votes[label] or unsure_is_right}


class ReviewerAgreement(NamedTuple):
    """Agreement of two reviewers on labels of which both were sure.

    Args:
        first, second: names of the reviewers.
        num_both, num_same: number of labels that both decided, and of equal decisions.
        kappa: Cohen's κ; None if all decisions are the same verdict.
    """

    first: str
    second: str
    num_both: int
    num_same: int
    kappa: float | None


def agreement(standing: Iterable[Decision]) -> list[ReviewerAgreement]:
    """Return the agreement of each two reviewers who decided a common label.

    Args:
        standing: last decisions, see :meth:`Decisions.standing`.
    """
    # Reading a config imports judges, and with them this module; scikit-learn is slow to import.
    from sklearn.metrics import cohen_kappa_score

    by_reviewer: dict[str, dict[Label, str]] = defaultdict(dict)
    for decision in standing:
        if decision.verdict != "unsure":
            by_reviewer[decision.reviewer][decision.label] = decision.verdict
    agreements = []
    for first, second in combinations(sorted(by_reviewer), 2):
        mine, theirs = by_reviewer[first], by_reviewer[second]
        both = [(mine[label], theirs[label]) for label in mine if label in theirs]
        if both:
            columns = list(zip(*both, strict=True))
            kappa = float(cohen_kappa_score(*columns)) if len(set(columns[0]) | set(columns[1])) > 1 else None
            agreements.append(ReviewerAgreement(first, second, len(both), sum(a == b for a, b in both), kappa))
    return agreements


def _end_of_lines(content: bytes) -> int:
    """Return where the last complete line ends; many an editor leaves out the last line break."""
    start = content.rfind(b"\n") + 1
    try:
        Decision.model_validate_json(content[start:].removeprefix(BOM_UTF8))
    except ValidationError:
        return start
    return len(content)


def append_decision(file: Path, decision: Decision) -> None:
    """Append a line and flush it to disk; several processes may append to one file.

    Raises:
        OSError: the line cannot be written, and the decision does not count.
    """
    # As Decisions.read resolves it: ~ is the home.
    file = Path(resolve_url(str(file))[1])
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "ab+") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        opened.seek(0)
        content = opened.read()
        end = _end_of_lines(content)
        opened.truncate(end)
        line_break = b"\n" if end and content[end - 1 : end] != b"\n" else b""
        opened.write(line_break + decision.model_dump_json().encode() + b"\n")
        opened.flush()
        os.fsync(opened.fileno())
        if not content:
            folder = os.open(file.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
