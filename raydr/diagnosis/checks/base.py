"""Interface of the checks. Severities are shares, so that they are comparable."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from raydr.component import Component
from raydr.diagnosis.evidence import BoolArray, Evidence
from raydr.diagnosis.intervals import share
from raydr.evaluation.significance import Interval

#: A finding is a fault if, with 97.5 % confidence, at least this share is affected.
FAULT = 0.1
#: Smaller findings are not reported.
_NOTE = 0.02
#: ``fault``: reported as a cause; ``note``: present, but too small to explain much.
Level = Literal["fault", "note", "ok"]
#: A cause; an explanation only if there is no cause; an effect of causes; a failure without explanation.
Rank = Literal["cause", "otherwise", "symptom", "unexplained"]


@dataclass(frozen=True)
class Finding:
    """Result of a check of a training.

    Args:
        check: name of the check.
        severity: lower end of the 95 % interval of the affected share of queries, pairs or the measure, in [0, 1].
        observation: observation, with numbers.
        settings: settings that remedy it, in the form of ``--set``; may be empty.
        advice: further remedies or remarks, as text.
        rank: rank of the check.
    """

    check: str
    severity: float
    observation: str
    settings: tuple[str, ...]
    advice: str
    rank: Rank = "cause"

    @property
    def remedy(self) -> str:
        """Settings and advice as text."""
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
    """Compared quantities."""

    needs: ClassVar[str]
    """Missing input, if the check could not run."""

    rank: ClassVar[Rank] = "cause"

    @abstractmethod
    def examine(self, evidence: Evidence) -> Finding | None:
        """Return the finding; None if the needed evidence was not measured."""

    def finding(
        self, severity: float, text: str, *settings: str, advice: str = "", rank: Rank | None = None
    ) -> Finding:
        """Return a finding of this check, with its severity clipped to [0, 1]."""
        return Finding(self.name, min(1.0, max(0.0, float(severity))), text, settings, advice, rank or self.rank)


def worst(hits: Mapping[str, BoolArray]) -> tuple[str, Interval]:
    """Return the group with the largest lower end of the affected share."""
    shares = {what: share(hit_N) for what, hit_N in hits.items()}
    what, most = max(shares.items(), key=lambda item: (bool(item[1].mean), item[1].low))
    return what, most if most.mean else Interval(0.0, 0.0, most.high)
