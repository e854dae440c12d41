"""Hard negatives that answer their query."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from raydr.diagnosis.checks.base import Check, Finding
from raydr.diagnosis.evidence import Evidence
from raydr.diagnosis.intervals import share


class FalseNegatives(Check):
    """A second positive is above the annotated one in half of all cases; a negative seldom by several readers at once,
    and less so by a model that was trained to put it below. So twice the share of hard negatives that all readers put
    above the positive estimates how many are false.

    >>> rng = np.random.default_rng(0)
    >>> above = {"bm25": rng.uniform(size=900) < 0.4, "trained": rng.uniform(size=900) < 0.5}
    >>> FalseNegatives().examine(Evidence(outscores=above)).level
    'fault'
    """

    compares: ClassVar[str] = "hard negatives with the positive of their query, by all readers at once"
    needs: ClassVar[str] = "training draws no hard negatives"

    name: Literal["false_negatives"] = "false_negatives"

    def examine(self, evidence: Evidence) -> Finding | None:
        if not evidence.outscores or not len(next(iter(evidence.outscores.values()))):
            return None
        by_all = share(np.logical_and.reduce(list(evidence.outscores.values())))
        return self.finding(
            2.0 * by_all.low,
            f"{by_all.mean:.1%} of the hard negatives are above their positive by {', '.join(evidence.outscores)} "
            f"alike: some {min(1.0, 2.0 * by_all.mean):.0%} answer their query",
            "judge.judges=[near_duplicate]",
            advice="leaves out what is nearly the positive, [classifier] what a model reads as an answer; or draw "
            "further down: negatives.first_rank",
        )
