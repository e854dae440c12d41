"""What a check sees and returns. Severities can be compared: all are the share of the same thing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from raydr.component import Component
from raydr.diagnosis.evidence import BoolArray, Evidence
from raydr.diagnosis.intervals import share
from raydr.evaluation.significance import Interval

#: A finding is a fault if, with 97.5 % confidence, at least this share is hit.
FAULT = 0.1
#: Below this it is not worth a line.
_NOTE = 0.02
#: ``fault``: named as a cause; ``note``: there, and too little to explain much.
Level = Literal["fault", "note", "ok"]
#: A cause of its own; what explains a training only where no cause does; what causes lead to; that it failed, no more.
Rank = Literal["cause", "otherwise", "symptom", "unexplained"]


@dataclass(frozen=True)
class Finding:
    """What one check says of a training.

    Args:
        check: its name.
        severity: lower end of the 95 % interval of the share of queries, pairs or of the measure that is hit, in
            [0, 1].
        found: in words, with the numbers.
        settings: that are the remedy, as ``--set`` takes them; none where a setting is no remedy.
        advice: what else to do, or to know, in words.
        rank: of the check.
    """

    check: str
    severity: float
    found: str
    settings: tuple[str, ...]
    advice: str
    rank: Rank = "cause"

    @property
    def remedy(self) -> str:
        """Settings and advice, for people."""
        return " ".join(filter(None, (*self.settings, self.advice)))

    @property
    def level(self) -> Level:
        if self.severity >= FAULT:
            return "fault"
        return "note" if self.severity >= _NOTE else "ok"


class Check(Component):
    """Base of the checks; subclasses implement :meth:`examine`."""

    package: ClassVar[str] = "raydr.diagnosis.checks"
    kind: ClassVar[str] = "check"
    compares: ClassVar[str]
    """What is compared with what."""

    needs: ClassVar[str]
    """What is missing where nothing was examined."""

    rank: ClassVar[Rank] = "cause"

    @abstractmethod
    def examine(self, evidence: Evidence) -> Finding | None:
        """What is found; None if what this needs was not measured."""

    def finding(
        self, severity: float, text: str, *settings: str, advice: str = "", rank: Rank | None = None
    ) -> Finding:
        """A finding of this check, its severity kept in [0, 1]."""
        return Finding(self.name, min(1.0, max(0.0, float(severity))), text, settings, advice, rank or self.rank)


def worst(hits: Mapping[str, BoolArray]) -> tuple[str, Interval]:
    """Of what most is hit, by the lower end of the share; nothing is hit where none is."""
    shares = {what: share(hit_N) for what, hit_N in hits.items()}
    what, most = max(shares.items(), key=lambda item: (bool(item[1].mean), item[1].low))
    return what, most if most.mean else Interval(0.0, 0.0, most.high)
