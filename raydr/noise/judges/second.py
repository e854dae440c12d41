"""Judges that may read what an earlier judge of the list is unsure of, and nothing else: the steps of a cascade."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import field_validator

from raydr.noise.judges.base import FloatArray, IntArray, Judge


class SecondJudge(Judge):
    """Base of the judges that can come after another one.

    With ``after`` only those rows are read on which that judge gave a doubtful verdict, and there this judge's verdict
    takes the place of that one. How doubtful a verdict is, see :func:`raydr.noise.reviewed.evidence`: the judge's
    probability that the label is wrong, and for judges without one σ(2 · standard deviations of the score from where
    flagging begins), ½ on the edge.
    """

    after: str = ""
    """The earlier judge of the list whose doubtful verdicts are looked at again; everything is read if empty."""

    unsure: tuple[float, float] = (0.1, 0.9)
    """Doubtful: that judge's probability that the label is wrong lies between these two, these included. ``[0, 1]``
    has all looked at, ``[0.5, 1]`` what it is inclined to flag. A judge without probabilities is at ½ where its
    flagging begins, and at 0.88 a standard deviation of its scores above that."""

    @field_validator("unsure")
    @classmethod
    def _in_order(cls, unsure: tuple[float, float]) -> tuple[float, float]:
        if not 0.0 <= unsure[0] <= unsure[1] <= 1.0:
            raise ValueError(f"unsure={list(unsure)} is no range of probabilities; expected 0 ≤ low ≤ high ≤ 1")
        return unsure

    def content(self) -> dict[str, Any]:
        found = super().content()
        return found if self.after else {name: found[name] for name in found if name not in ("after", "unsure")}

    def choose(self, evidence_N: FloatArray) -> IntArray:
        """The rows that are read, in their order, by the log-odds of their labels being wrong."""
        low, high = self.unsure
        wrong_N = 1.0 / (1.0 + np.exp(-evidence_N))
        return np.flatnonzero((wrong_N >= low) & (wrong_N <= high))
