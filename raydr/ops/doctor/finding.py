"""One thing that was looked at, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

#: ``warning``: a run works, slower or not as asked; ``broken``: it will fail.
State = Literal["ok", "warning", "broken"]


@dataclass(frozen=True)
class Finding:
    """What was looked at, what was found, and what to do if it is not ok. Holds no secrets."""

    check: str
    state: State
    found: str
    advice: str = ""

    @classmethod
    def ok(cls, check: str, found: str) -> Finding:
        return cls(check, "ok", found)

    @classmethod
    def warning(cls, check: str, found: str, advice: str) -> Finding:
        return cls(check, "warning", found, advice)

    @classmethod
    def broken(cls, check: str, found: str, advice: str) -> Finding:
        return cls(check, "broken", found, advice)


def any_broken(findings: Sequence[Finding]) -> bool:
    return any(finding.state == "broken" for finding in findings)
