"""Texts of which the model reads only the beginning."""

from __future__ import annotations

from typing import ClassVar, Literal

from raydr.diagnosis import intervals
from raydr.diagnosis.checks.base import Check, Finding
from raydr.diagnosis.evidence import BM25, BM25_CUT, Evidence

#: Where BM25 finds less than this it cannot say what is lost.
_FINDS = 0.05


class Truncation(Check):
    """The share of what BM25 finds by whole texts that it does not find by texts cut as the model reads them: what is
    cut off costs what it is worth, and the model's own quality plays no part.

    >>> import numpy as np
    >>> found = {"bm25": np.ones(100), "bm25, texts cut": (np.arange(100) < 20) * 1.0}
    >>> Truncation().examine(Evidence(held_out=found)).level
    'fault'
    """

    compares: ClassVar[str] = "BM25 over whole texts with BM25 over texts cut at max_length (paired)"
    needs: ClassVar[str] = "there is no held-out split, or BM25 finds next to nothing of it"

    name: Literal["truncation"] = "truncation"

    def examine(self, evidence: Evidence) -> Finding | None:
        if BM25_CUT not in evidence.held_out:
            return None
        whole, cut = evidence.held_out[BM25], evidence.held_out[BM25_CUT]
        if (found := intervals.mean(whole)).low < _FINDS:
            return None
        longer = [f"model.{side}.max_length={one.fitting}" for side, one in evidence.lengths.items() if one.share_cut]
        told = " and ".join(f"{one.share_cut:.0%} of the {side} tokens" for side, one in evidence.lengths.items())
        return self.finding(
            intervals.mean(whole - cut).low / found.mean,
            f"{told or 'tokens'} are beyond max_length; BM25's RR@10 falls from {found.mean:.3f} to {cut.mean():.3f} "
            "on texts cut like that",
            *longer,
            advice="(95 % of the texts fit)",
        )
