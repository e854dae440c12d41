"""GIST: a guide model flags negatives that resemble positives."""

from __future__ import annotations

from typing import ClassVar, Literal

from raydr.noise.judges.margin import MarginRule


class Guide(MarginRule):
    """Drops a negative whose guide score exceeds the positive's less a margin.

    A negative is suspicious iff g > g⁺ − margin (absolute) or g > g⁺ − margin·|g⁺| (relative), with g the guide's
    similarity. Scores of the retriever are ignored, so that its mistakes are not repeated.

    Source: Solatorio, GISTEmbed (2024), with margin 0.

    >>> from raydr.noise.judges.base import ScoredCandidates
    >>> Guide().judge(ScoredCandidates.of_query([0.9, 0.7], positive_score=0.8)).action.tolist()
    ['drop', 'keep']
    """

    reads: ClassVar[Literal["guide"]] = "guide"

    flags: ClassVar[str] = "candidates that a guide model scores above the annotated passage less a margin"
    score_name: ClassVar[str] = "guide's similarity above the limit"

    name: Literal["guide"] = "guide"
