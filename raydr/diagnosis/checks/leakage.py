"""Held-out queries that are trained on."""

from __future__ import annotations

from typing import ClassVar, Literal

from raydr.diagnosis.checks.base import Check, Finding, worst
from raydr.diagnosis.evidence import Evidence


class Leakage(Check):
    """What is measured on queries that were trained on is too good, and an epoch chosen by them is the wrong one.

    >>> import numpy as np
    >>> Leakage().examine(Evidence(leaked={"dev": np.zeros(50, bool), "test": np.ones(50, bool)})).level
    'fault'
    """

    compares: ClassVar[str] = "queries of each held-out split with those of the training split, by their words"
    needs: ClassVar[str] = "there is no held-out split"

    name: Literal["leakage"] = "leakage"

    def examine(self, evidence: Evidence) -> Finding | None:
        if not evidence.leaked:
            return None
        split, hit = worst(evidence.leaked)
        return self.finding(
            hit.low,
            f"{int(evidence.leaked[split].sum()):,} of {len(evidence.leaked[split]):,} queries of {split} "
            f"({hit.mean:.0%}) are in the training split too, word for word or nearly: what is measured is too good",
            "data.leaked_queries=leave_out",
        )
