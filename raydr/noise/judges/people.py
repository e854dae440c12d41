"""Judges by decisions of people, which ``raydr review`` collects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from raydr.errors import ConfigError
from raydr.noise.decisions import Decisions, Label
from raydr.noise.judges.asked import Asked, AskedModels
from raydr.noise.judges.base import BoolArray, Judge, ScoredCandidates, Verdicts


class DecisionsReader(Judge):
    """Base of the judges that read decisions of people."""

    file: str = ""
    """File of decisions that ``raydr review`` writes; ``review/decisions.jsonl`` in the working folder if empty."""

    def content(self) -> dict[str, Any]:
        # Verdicts depend on the decisions, not on the place of the file.
        return {name: value for name, value in super().content().items() if name != "file"}

    def decisions(self, workdir: str) -> str:
        """Return the path or URL of the file."""
        return self.file or f"{workdir.rstrip('/')}/review/decisions.jsonl"

    def settled(self, decisions: Decisions, split: str) -> dict[Label, bool]:
        """Return whether each decided label is wrong."""
        return decisions.settled(self.subject, split)


class PeopleJudge(DecisionsReader):
    """Base of the judges whose verdicts are decisions of people.

    A label is kept if most reviewers who are sure call it right, and dropped if they call it wrong. Other labels have
    no verdict. The verdicts are final: other judges cannot change them. A decision holds for the texts that were read;
    other texts with the same ids have no verdict. No model is run.
    """

    score_name: ClassVar[str] = "1 where people call the label wrong"

    def asks(self, models: AskedModels) -> Asked:
        return None

    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        raise ConfigError(f"judge {self.name} reads decisions, not scores")

    @staticmethod
    def decide(labels: list[Label], settled: Mapping[Label, bool]) -> tuple[BoolArray, Verdicts]:
        """Return whether each label is decided, and the verdicts on the decided labels.

        Args:
            labels: current labels.
            settled: whether each decided label is wrong, see :meth:`raydr.noise.decisions.Decisions.settled`.
        """
        decided_N = np.array([label in settled for label in labels], dtype=np.bool_)
        wrong_D = np.array([settled[label] for label in labels if label in settled], dtype=np.bool_)
        return decided_N, Verdicts(
            wrong_D.astype(np.float64), np.where(wrong_D, "drop", "keep"), 1.0 - wrong_D.astype(np.float64)
        )


class People(PeopleJudge):
    """Keeps the training pairs that people call right and drops those that they call wrong.

    In ``judge.judges`` it implies ``people_negatives`` for candidates.
    """

    subject: ClassVar[Literal["pairs"]] = "pairs"
    flags: ClassVar[str] = "pairs that people call wrong"

    name: Literal["people"] = "people"

    def companions(self) -> tuple[Judge, ...]:
        return (PeopleNegatives(file=self.file),)


class PeopleNegatives(PeopleJudge):
    """Keeps candidates that people call true negatives and drops those that answer the query."""

    flags: ClassVar[str] = "candidates that answer the query, as people decided"

    name: Literal["people_negatives"] = "people_negatives"


#: Judges whose verdicts are final.
PEOPLE = ("people", "people_negatives")
