"""GIST: another model says which negatives look like positives."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import model_validator

from raydr.noise.judges.base import ScoredCandidates, SuspicionJudge, Verdicts
from raydr.noise.judges.margin import MarginMode, check_margin, margin_limits


class Guide(SuspicionJudge):
    """Drops a negative that a guide model scores above the positive's guide score less a margin.

    Suspicious iff g > g⁺ − margin (absolute) or g > g⁺ − margin·|g⁺| (relative), with g the guide's similarity. The
    retriever's own scores play no part, so that its mistakes are not repeated.

    Source: Solatorio, GISTEmbed (2024); PEERS.md §7.5.

    Args:
        mode: what the margin is measured in.
        margin: 0 is the paper's rule.

    >>> Guide().judge(ScoredCandidates.of_one([0.9, 0.7], positive_score=0.8)).action.tolist()
    ['drop', 'keep']
    """

    reads: ClassVar[Literal["guide"]] = "guide"

    name: Literal["guide"] = "guide"
    mode: MarginMode = "absolute"
    margin: float = 0.0

    @model_validator(mode="after")
    def _margin_in_range(self) -> Guide:
        check_margin(self.mode, self.margin)
        return self

    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        limits_Q = margin_limits(candidates.positives(self.name), self.mode, self.margin)
        excess_M = candidates.scores_M - limits_Q[candidates.query_M()]
        return self.verdicts(excess_M, excess_M > 0.0)
