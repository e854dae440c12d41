"""The state of a review: the next label of each reviewer, their decisions, and the quality of the judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np

from raydr.console import counted
from raydr.noise.decisions import Decision, Decisions, Label, Subject, Verdict, Word, agreement, append_decision
from raydr.noise.reviewed import ReviewedQuality
from raydr.ops.review.verdicts import JudgeVerdicts, Order, ShownLabel, distance_from_even


@dataclass
class Review:
    """A file of decisions, and a list of labels to decide on.

    Args:
        file: of the decisions, local.
        split: the split of the decisions.
        verdicts: the verdicts that the labels come from.
        queue: the labels, in the order in which all reviewers see them.
        order: ``informative`` moves the labels that are most in doubt to the front, by the decisions until then.
    """

    file: Path
    split: str
    verdicts: Sequence[JudgeVerdicts]
    queue: Sequence[ShownLabel]
    order: Order = "worst"

    def decisions(self) -> Decisions:
        """Read the decisions again: another process may write to the file too."""
        return Decisions.read(str(self.file))

    def decide(self, reviewer: str, label_id: str, verdict: Verdict) -> None:
        """Write a verdict.

        Raises:
            KeyError: there is no such label in the list.
        """
        self._write(reviewer, {shown.label.id: shown.label for shown in self.queue}[label_id], verdict)

    def undo(self, reviewer: str) -> Label | None:
        """Take a reviewer's last verdict back; returns what it was about, None if there is none."""
        standing = self.decisions().standing(reviewer)
        if not standing:
            return None
        self._write(reviewer, standing[-1].label, "undo")
        return standing[-1].label

    def _write(self, reviewer: str, label: Label, verdict: Word) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        append_decision(self.file, Decision(at=now, reviewer=reviewer, **label._asdict(), verdict=verdict))

    def state(self, reviewer: str, kind: Subject | Literal["all"], first: Label | None = None) -> dict[str, Any]:
        """Return the content of the page as JSON values.

        Args:
            reviewer: who sees the page; verdicts of others are hidden.
            kind: of the labels.
            first: the next label in any case; the first undecided label if None.
        """
        decisions = self.decisions()
        decided_labels = {decision.label: decision.verdict for decision in decisions.standing(reviewer)}
        wanted = [shown for shown in self.queue if kind in ("all", shown.label.subject)]
        known = self._known(decisions)
        waiting = [shown for shown in wanted if shown.label not in decided_labels]
        if self.order == "informative":
            waiting = _in_turn(waiting, known)
        waiting = [shown for shown in self.queue if shown.label == first] + waiting
        decided = Counter(decided_labels[shown.label] for shown in wanted if shown.label in decided_labels)
        return {
            "item": _as_json(waiting[0]) if waiting else None,
            "total": len(wanted),
            "decided": {verdict: decided[verdict] for verdict in ("right", "wrong", "unsure")},
            "can_undo": bool(decided_labels),
            "findings": self._findings(decisions, known),
        }

    def findings(self, decisions: Decisions) -> list[str]:
        """Return sentences on the quality of each judge, and on the agreement of each two reviewers."""
        return self._findings(decisions, self._known(decisions))

    def _known(self, decisions: Decisions) -> dict[str, ReviewedQuality | None]:
        """Estimate the quality of each judge from the decisions until now."""
        return {
            verdicts.name: verdicts.quality(decisions.settled(verdicts.subject, self.split))
            for verdicts in self.verdicts
        }

    def _findings(self, decisions: Decisions, quality: Mapping[str, ReviewedQuality | None]) -> list[str]:
        sentences = []
        for verdicts in self.verdicts:
            known = quality[verdicts.name]
            if known is None:
                sentences.append(f"{verdicts.name}: no decision yet")
                continue
            made = f"{counted(known.num_decided, 'decision')}, {known.num_wrong} of them wrong"
            sentences.append(
                f"{verdicts.name}: precision {known.precision}, recall {known.recall}, estimated from {made}"
            )
        for both in agreement(decisions.standing()):
            kappa = "" if both.kappa is None else f", Cohen's κ {both.kappa:.2f}"
            sentences.append(f"{both.first} and {both.second} agree on {both.num_same} of {both.num_both}{kappa}")
        return sentences


def _in_turn(waiting: Sequence[ShownLabel], known: Mapping[str, ReviewedQuality | None]) -> list[ShownLabel]:
    """Order labels by their distance from even, the judges in turn: their log-odds are not on one scale."""
    of_judge: dict[str, list[ShownLabel]] = {}
    for shown in waiting:
        of_judge.setdefault(shown.judge, []).append(shown)
    ordered = [
        sorted(mine, key=lambda shown: float(distance_from_even(np.array(shown.evidence), known[shown.judge])))
        for mine in of_judge.values()
    ]
    return [shown for turn in zip_longest(*ordered) for shown in turn if shown is not None]


def _as_json(shown: ShownLabel) -> dict[str, Any]:
    texts = [dict(zip(("role", "id", "title", "text"), text, strict=True)) for text in shown.texts]
    return {"id": shown.label.id, "kind": shown.label.subject, "facts": shown.facts, "texts": texts}
