"""The state of a review: the next label of each reviewer, the decisions, and the warranties that they support."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from raydr.noise.decisions import Decision, Decisions, Label, Subject, Verdict, Word, agreement, append_decision
from raydr.noise.warranty import Warranty
from raydr.ops.review.verdicts import JudgeVerdicts, ShownLabel


@dataclass
class Review:
    """A file of decisions, and a list of labels to decide on.

    Args:
        file: local file of the decisions.
        split: the split of the decisions.
        verdicts: the verdicts that the labels come from.
        read: returns the labels in the order in which all reviewers see them. Its argument is the number of warranted
            sets of each judge; it is called again when these numbers change.
    """

    file: Path
    split: str
    verdicts: Sequence[JudgeVerdicts]
    read: Callable[[Sequence[int]], Sequence[ShownLabel]]
    queue: Sequence[ShownLabel] = field(default=(), init=False)
    _stages: list[int] | None = field(default=None, init=False)
    _shown: dict[str, ShownLabel] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._refresh(self._warranties(self.decisions()))

    def _refresh(self, warranties: Sequence[Warranty]) -> None:
        stages = [warranty.stage for warranty in warranties]
        if stages != self._stages:
            self.queue, self._stages = self.read(stages), stages
            self._shown |= {shown.label.id: shown for shown in self.queue}

    def decisions(self) -> Decisions:
        """Read the decisions anew, since another process may write to the file too."""
        return Decisions.read(str(self.file))

    def decide(self, reviewer: str, label_id: str, verdict: Verdict) -> None:
        """Write a verdict.

        Raises:
            KeyError: no such label was listed.
        """
        self._write(reviewer, self._shown[label_id].label, verdict)

    def undo(self, reviewer: str) -> Label | None:
        """Take back a reviewer's last verdict on a listed label; return the label, or None without a verdict."""
        listed = self._listed(self.decisions(), reviewer)
        if not listed:
            return None
        self._write(reviewer, listed[-1].label, "undo")
        return listed[-1].label

    def _listed(self, decisions: Decisions, reviewer: str) -> list[Decision]:
        """Return a reviewer's last decisions on labels of the list: no page shows those on other splits and texts."""
        return [decision for decision in decisions.standing(reviewer) if decision.label.id in self._shown]

    def _write(self, reviewer: str, label: Label, verdict: Word) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        append_decision(self.file, Decision(at=now, reviewer=reviewer, **label._asdict(), verdict=verdict))

    def state(self, reviewer: str, kind: Subject | Literal["all"], first: Label | None = None) -> dict[str, Any]:
        """Return the content of the page as JSON values.

        Args:
            reviewer: who sees the page; verdicts of others are hidden.
            kind: kind of the labels.
            first: the label to show next; by default the first undecided label.
        """
        decisions = self.decisions()
        warranties = self._warranties(decisions)
        self._refresh(warranties)
        listed = self._listed(decisions, reviewer)
        decided_labels = {decision.label: decision.verdict for decision in listed if kind in ("all", decision.subject)}
        wanted = [shown for shown in self.queue if kind in ("all", shown.label.subject)]
        waiting = [shown for shown in wanted if shown.label not in decided_labels]
        total = len(waiting) + len(decided_labels)
        if first is not None:
            waiting = [self._shown[first.id], *waiting]
        decided = Counter(decided_labels.values())
        return {
            "item": _as_json(waiting[0]) if waiting else None,
            "total": total,
            "decided": {verdict: decided[verdict] for verdict in ("right", "wrong", "unsure")},
            "can_undo": bool(listed),
            "findings": self._findings(decisions, warranties),
        }

    def findings(self, decisions: Decisions) -> list[str]:
        """Return sentences on the warranty of each judge, and on the agreement of each pair of reviewers."""
        return self._findings(decisions, self._warranties(decisions))

    def _warranties(self, decisions: Decisions) -> list[Warranty]:
        return [verdicts.warranty(decisions, self.split) for verdicts in self.verdicts]

    def _findings(self, decisions: Decisions, warranties: Sequence[Warranty]) -> list[str]:
        sentences = []
        for verdicts, warranty in zip(self.verdicts, warranties, strict=True):
            noun = "pairs" if verdicts.subject == "pairs" else "candidates"
            sentences.append(f"{verdicts.name}: {warranty.sentence(noun)}")
        for both in agreement(decisions.standing()):
            kappa = "" if both.kappa is None else f", Cohen's κ {both.kappa:.2f}"
            sentences.append(f"{both.first} and {both.second} agree on {both.num_same} of {both.num_both}{kappa}")
        return sentences


def _as_json(shown: ShownLabel) -> dict[str, Any]:
    texts = [dict(zip(("role", "id", "title", "text"), text, strict=True)) for text in shown.texts]
    return {"id": shown.label.id, "kind": shown.label.subject, "facts": shown.facts, "texts": texts}
