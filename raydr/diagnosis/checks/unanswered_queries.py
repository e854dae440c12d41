"""Queries that no passage answers."""

from __future__ import annotations

from typing import ClassVar, Literal

from raydr.diagnosis.checks.base import Check, Finding, worst
from raydr.diagnosis.evidence import Evidence


class UnansweredQueries(Check):
    """Its judgments name passages that the corpus has not, or there are none: the query scores 0 whatever is found, and
    is not learnt from.

    >>> import numpy as np
    >>> UnansweredQueries().examine(Evidence(unanswered={"test": np.arange(80) < 40})).level
    'fault'
    """

    compares: ClassVar[str] = "judgments of each split with the ids of the corpus"
    needs: ClassVar[str] = "there are no queries"

    name: Literal["unanswered_queries"] = "unanswered_queries"

    def examine(self, evidence: Evidence) -> Finding | None:
        if not evidence.unanswered:
            return None
        split, hit = worst(evidence.unanswered)
        return self.finding(
            hit.low,
            f"{int(evidence.unanswered[split].sum()):,} of {len(evidence.unanswered[split]):,} queries of {split} "
            f"({hit.mean:.0%}) have no positive in the corpus",
            advice="read the corpus that the judgments were made for (data.reader); raydr inspect says what is missing",
        )
