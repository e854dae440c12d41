"""Passages and queries that are there more than once."""

from __future__ import annotations

from typing import ClassVar, Literal

from raydr.diagnosis.checks.base import Check, Finding, worst
from raydr.diagnosis.evidence import Evidence


class Duplicates(Check):
    """A copy of a positive that nobody has judged is trained against, and counts as a miss; where queries say the same
    and have other answers, one's answer is the other's negative.

    >>> import numpy as np
    >>> Duplicates().examine(Evidence(repeated={"positives": np.arange(100) < 30})).level
    'fault'
    """

    compares: ClassVar[str] = "positives with all passages, training queries with each other, by their words"
    needs: ClassVar[str] = "there are no positives"

    name: Literal["duplicates"] = "duplicates"

    def examine(self, evidence: Evidence) -> Finding | None:
        if not evidence.repeated:
            return None
        told = ", ".join(f"{one.mean():.1%} of the {what}" for what, one in evidence.repeated.items())
        return self.finding(
            worst(evidence.repeated)[1].low,
            f"there again, and counted as wrong: {told}",
            advice="remove the copies from the data, or judge them: each copy of a positive as a positive of its query",
        )
