"""What people have decided, as a judge: the page of ``raydr review`` asks them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from raydr.errors import ConfigError
from raydr.noise.decisions import Label
from raydr.noise.judges.asked import Asked, AskedModels
from raydr.noise.judges.base import BoolArray, Judge, ScoredCandidates, Verdicts


class DecisionsReader(Judge):
    """Base of the judges that read what people have decided."""

    file: str = ""
    """The decisions, which ``raydr review`` writes; ``review/decisions.jsonl`` in the working folder if empty."""

    def content(self) -> dict[str, Any]:
        # Not where decisions lie, but what they are.
        return {name: value for name, value in super().content().items() if name != "file"}

    def decisions(self, workdir: str) -> str:
        """The path or URL of the file."""
        return self.file or f"{workdir.rstrip('/')}/review/decisions.jsonl"


class PeopleJudge(DecisionsReader):
    """Base of the judges whose verdicts are decisions of people.

    Where most reviewers who are sure call a label right it is kept, where they call it wrong it is dropped; on all else
    there is no verdict. What they say counts alone: other judges neither add to it nor take from it. A decision holds
    for the texts that were read: under the same ids, other texts have no verdict. No model is asked.
    """

    score_name: ClassVar[str] = "1 where people call the label wrong"

    def asks(self, models: AskedModels) -> Asked:
        return None

    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        raise ConfigError(f"judge {self.name} reads decisions and no scores")

    @staticmethod
    def decide(labels: list[Label], settled: Mapping[Label, bool]) -> tuple[BoolArray, Verdicts]:
        """Which of some labels are decided, and the verdicts on these.

        Args:
            labels: as they are now.
            settled: whether each decided label is wrong, see :meth:`raydr.noise.decisions.Decisions.settled`.
        """
        decided_N = np.array([label in settled for label in labels], dtype=np.bool_)
        wrong_D = np.array([settled[label] for label in labels if label in settled], dtype=np.bool_)
        return decided_N, Verdicts(
            wrong_D.astype(np.float64), np.where(wrong_D, "drop", "keep"), 1.0 - wrong_D.astype(np.float64)
        )


class People(PeopleJudge):
    """Keeps the training pairs that people call right and drops those that they call wrong.

    Listed in ``judge.judges`` it brings ``people_negatives`` along where candidates are judged: one name for all that
    was decided.
    """

    subject: ClassVar[Literal["pairs"]] = "pairs"
    flags: ClassVar[str] = "pairs that people call wrong"

    name: Literal["people"] = "people"

    def beside(self) -> tuple[Judge, ...]:
        return (PeopleNegatives(file=self.file),)


class PeopleNegatives(PeopleJudge):
    """Keeps the candidates that people call rightly negative and drops those that answer the query after all."""

    flags: ClassVar[str] = "candidates of which people say that they answer the query"

    name: Literal["people_negatives"] = "people_negatives"


#: Their word counts alone.
PEOPLE = ("people", "people_negatives")
