"""Run all checks on the evidence, and rank causes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_args

from raydr.component import build
from raydr.diagnosis import intervals
from raydr.diagnosis.checks.base import Check, Finding, Level, Rank
from raydr.diagnosis.evidence import BM25_CUT, UNTRAINED, Evidence
from raydr.evaluation.significance import Interval


@dataclass(frozen=True)
class Diagnosis:
    """Result of a diagnosis.

    Args:
        split: held-out split of the measures.
        num_queries, num_ranked: number of its queries, and of searched passages.
        scores: RR@10 of each reader.
        gains: paired gain of each reader over the untrained model.
        findings: findings of all checks; faults first: causes, then explanations without a cause, then symptoms, then
            failures without explanation; each by severity.
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
        """Faults, the likeliest cause first."""
        return [finding for finding in self.findings if finding.level == "fault"]

    def of_level(self, level: Level) -> list[Finding]:
        return [finding for finding in self.findings if finding.level == level]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; findings include their level."""
        levels = [{"level": finding.level, **asdict(finding)} for finding in self.findings]
        return {name: value for name, value in asdict(self).items() if name != "findings"} | {"findings": levels}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Diagnosis:
        findings = (
            {name: value for name, value in row.items() if name != "level"} | {"settings": tuple(row["settings"])}
            for row in value["findings"]
        )
        means = {name: {key: Interval(*bounds) for key, bounds in value[name].items()} for name in ("scores", "gains")}
        return cls(**{**value, **means, "findings": tuple(Finding(**finding) for finding in findings)})


def diagnose(evidence: Evidence) -> Diagnosis:
    """Run all checks."""
    checks = [build(Check, name) for name in Check.choices()]
    examined = {check.name: check.examine(evidence) for check in checks}
    rr = {reader: values for reader, values in evidence.held_out.items() if reader != BM25_CUT}
    before = rr.get(UNTRAINED)
    gains = {} if before is None else {reader: intervals.mean(values - before) for reader, values in rr.items()}
    gains.pop(UNTRAINED, None)
    return Diagnosis(
        evidence.split,
        len(next(iter(rr.values()), ())),
        evidence.num_ranked,
        {reader: intervals.mean(values) for reader, values in rr.items()},
        gains,
        tuple(sorted(filter(None, examined.values()), key=_order)),
        {check.name: check.compares for check in checks},
        {check.name: check.needs for check in checks if examined[check.name] is None},
    )


def _order(finding: Finding) -> tuple[int, int, float]:
    return get_args(Level).index(finding.level), get_args(Rank).index(finding.rank), -finding.severity
