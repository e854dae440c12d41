"""Diagnosis of a training: the interface of checks, their run, and the ranking of causes.

Severities are shares, so that they are comparable.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, get_args

from pydantic import TypeAdapter

from raydr.component import Component, build
from raydr.diagnosis.evidence import BM25_CUT, UNTRAINED, BoolArray, Evidence, mean_of, share_of
from raydr.evaluation.significance import Interval

#: Minimum of a fault's severity: with 97.5 % confidence, at least this share is affected.
FAULT = 0.1
#: Minimum severity of a reported finding.
_NOTE = 0.02
#: ``fault``: reported as a cause; ``note``: present, but too small to explain much.
Level = Literal["fault", "note", "ok"]
#: A cause; an explanation only without a cause; an effect of causes; a failure without explanation.
Rank = Literal["cause", "otherwise", "symptom", "unexplained"]


@dataclass(frozen=True)
class Finding:
    """Result of a check of a training.

    Args:
        check: name of the check.
        severity: lower end of the 95 % interval of the affected share of queries, pairs or the measure, in [0, 1].
        observation: observation, with numbers.
        settings: settings that remedy the finding, in the form of ``--set``; may be empty.
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
        """Return the finding; None if the required evidence was not measured."""

    def finding(
        self, severity: float, text: str, *settings: str, advice: str = "", rank: Rank | None = None
    ) -> Finding:
        """Return a finding of this check, with its severity clipped to [0, 1]."""
        return Finding(self.name, min(1.0, max(0.0, float(severity))), text, settings, advice, rank or self.rank)


def worst(hits: Mapping[str, BoolArray]) -> tuple[str, Interval]:
    """Return the group with the largest lower end of the affected share."""
    shares = {what: share_of(hit_N) for what, hit_N in hits.items()}
    what, most = max(shares.items(), key=lambda item: (bool(item[1].mean), item[1].low))
    return what, most if most.mean else Interval(0.0, 0.0, most.high)


@dataclass(frozen=True)
class Diagnosis:
    """Result of a diagnosis.

    Args:
        split: held-out split of the measures.
        num_queries, num_ranked: number of the split's queries, and of searched passages.
        scores: RR@10 of each reader.
        gains: paired gain of each reader over the untrained model.
        findings: findings of all checks by level, faults first, then by rank, then by severity.
        compared: compared quantities, by check.
        missing: missing input, by check that could not run.
    """

    split: str
    num_queries: int
    num_ranked: int
    scores: Mapping[str, Interval]
    gains: Mapping[str, Interval]
    findings: tuple[Finding, ...]
    compared: Mapping[str, str]
    missing: Mapping[str, str]

    @property
    def faults(self) -> list[Finding]:
        """Faults by rank and severity, so that the likeliest cause comes first."""
        return [finding for finding in self.findings if finding.level == "fault"]

    def of_level(self, level: Level) -> list[Finding]:
        return [finding for finding in self.findings if finding.level == level]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; findings include their level."""
        levels = [{"level": finding.level, **asdict(finding)} for finding in self.findings]
        return {name: value for name, value in asdict(self).items() if name != "findings"} | {"findings": levels}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Diagnosis:
        return TypeAdapter(cls).validate_python(value)


def diagnose(evidence: Evidence) -> Diagnosis:
    """Run all checks, and return their findings."""
    checks = [build(Check, name) for name in Check.choices()]
    examined = {check.name: check.examine(evidence) for check in checks}
    rr = {reader: values for reader, values in evidence.held_out.items() if reader != BM25_CUT}
    before = rr.get(UNTRAINED)
    gains = {} if before is None else {reader: mean_of(values - before) for reader, values in rr.items()}
    gains.pop(UNTRAINED, None)
    return Diagnosis(
        evidence.split,
        len(next(iter(rr.values()), ())),
        evidence.num_ranked,
        {reader: mean_of(values) for reader, values in rr.items()},
        gains,
        tuple(sorted(filter(None, examined.values()), key=_order)),
        {check.name: check.compares for check in checks},
        {check.name: check.needs for check in checks if examined[check.name] is None},
    )


def _order(finding: Finding) -> tuple[int, int, float]:
    return get_args(Level).index(finding.level), get_args(Rank).index(finding.rank), -finding.severity
