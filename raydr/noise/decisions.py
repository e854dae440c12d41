"""What people decide of pairs and candidates: one line of JSON a click, in a file that only grows.

A line says who has decided, of which query and passage, what it was labelled as, with which texts, and the verdict on
that label. A line with the verdict ``undo`` takes back the reviewer's last one on the same label. A line counts once it
ends: what a killed process has left of one is no decision, and goes when the next is written.
"""

from __future__ import annotations

import fcntl
import os
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

#: A label is a pair, "this passage answers the query", or a candidate negative, "this passage does not".
Subject = Literal["pairs", "negatives"]
Verdict = Literal["right", "wrong", "unsure"]
Word = Literal["right", "wrong", "unsure", "undo"]


class Label(NamedTuple):
    """What is decided on: a query, a passage and their texts, and whether they were labelled as a match."""

    subject: Subject
    split: str
    query_id: str
    passage_id: str
    texts: str

    @property
    def id(self) -> str:
        """A short name of it, for links and forms."""
        return f"{stable_hash64(*self):016x}"


def digest_texts(query: str, title: str, text: str) -> str:
    """Stands for the texts that were decided on: a decision holds for no others, whatever their ids are."""
    return f"{stable_hash64(query, title, text):016x}"


class Decision(Config):
    """One line of the file."""

    at: str
    """When, as ISO 8601."""

    reviewer: str = Field(min_length=1, max_length=80)
    subject: Subject
    split: str
    query_id: str
    passage_id: str
    texts: str
    """As from :func:`digest_texts`."""

    verdict: Word
    """``right``: the label holds; ``wrong``: it does not."""

    @property
    def label(self) -> Label:
        return Label(self.subject, self.split, self.query_id, self.passage_id, self.texts)


@dataclass(frozen=True)
class Decisions:
    """What a file of decisions says.

    Args:
        lines: all of them, in their order.
        is_torn: whether the last line has no end: it was being written when its process was killed.
    """

    lines: tuple[Decision, ...] = ()
    is_torn: bool = False

    @classmethod
    def parse(cls, content: bytes, where: str) -> Decisions:
        """Read a file.

        Raises:
            DataError: a line is no decision; names it.
        """
        *whole, rest = content.split(b"\n")
        lines = []
        for number, line in enumerate(whole, start=1):
            try:
                lines.append(Decision.model_validate_json(line))
            except ValidationError as error:
                raise DataError(
                    f"{where}, line {number}, is no decision ({'; '.join(findings(error))}): restore it, or take it out"
                ) from None
        return cls(tuple(lines), bool(rest))

    @classmethod
    def read(cls, file: str) -> Decisions:
        """Read a file by its path or URL; none is there before the first decision.

        Raises:
            DataError: a line is no decision.
        """
        filesystem, path = resolve_url(file)
        return cls.parse(filesystem.cat_file(path), file) if filesystem.exists(path) else cls()

    def standing(self, reviewer: str | None = None) -> list[Decision]:
        """The last word of each reviewer, or of one, on each label, in the order in which they were said."""
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

    def settled(self, subject: Subject, split: str) -> dict[Label, bool]:
        """Whether each label is wrong, as most of its reviewers say; without those that nobody is sure of, and ties.

        Sorted, so that it depends on what was decided and not on when.
        """
        votes: Counter[Label] = Counter()
        for decision in self.standing():
            if (decision.subject, decision.split) == (subject, split):
                votes[decision.label] += {"wrong": 1, "right": -1}.get(decision.verdict, 0)
        return {label: votes[label] > 0 for label in sorted(votes) if votes[label]}


class ReviewerAgreement(NamedTuple):
    """How far two reviewers agree on what both were sure of.

    Args:
        first, second: their names.
        num_both, num_same: labels that both have decided, and alike.
        kappa: Cohen's κ; None where each gave one verdict only.
    """

    first: str
    second: str
    num_both: int
    num_same: int
    kappa: float | None


def agreement(standing: Iterable[Decision]) -> list[ReviewerAgreement]:
    """Of each two reviewers with a label in common.

    Args:
        standing: as from :meth:`Decisions.standing`.
    """
    # Imported here, since judges, which configs name, import this module.
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


def append_decision(file: Path, decision: Decision) -> None:
    """Add a line, on disk when this returns; several processes may write into one file.

    Raises:
        OSError: it cannot be written; then it is no decision.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "ab+") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        opened.seek(0)
        content = opened.read()
        opened.truncate(content.rfind(b"\n") + 1)
        opened.write(decision.model_dump_json().encode() + b"\n")
        opened.flush()
        os.fsync(opened.fileno())
        if not content:
            folder = os.open(file.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
