"""A training that ended before it had learnt."""

from __future__ import annotations

from typing import ClassVar, Literal

from raydr.diagnosis import intervals
from raydr.diagnosis.checks.base import Check, Finding, Rank
from raydr.diagnosis.evidence import TRAINED, UNTRAINED, Evidence
from raydr.diagnosis.progress import Progress

#: Fewer steps than any published recipe of fine-tuning has.
_FEW = 100


class TooFewSteps(Check):
    """Few steps, and either next to nothing was learnt, or the last epoch still brought much on held-out queries.

    >>> import numpy as np
    >>> before = np.random.default_rng(0).uniform(size=300)
    >>> found = {"untrained": before, "trained": before + 0.001}
    >>> TooFewSteps().examine(Evidence(training=found, num_steps=3, learning_rate=1e-3)).level
    'fault'
    """

    compares: ClassVar[str] = "the trained model with the untrained one (paired), the last epoch with the one before"
    needs: ClassVar[str] = "there are no training queries"
    rank: ClassVar[Rank] = "otherwise"

    name: Literal["too_few_steps"] = "too_few_steps"

    def examine(self, evidence: Evidence) -> Finding | None:
        progress = Progress.of(evidence)
        if progress is None:
            return None
        severity = max(progress.left, _rise(evidence)) if evidence.num_steps < _FEW else 0.0
        epochs = len(evidence.losses)
        return self.finding(
            severity,
            f"{evidence.num_steps:,} steps in all ({epochs} {'epoch' if epochs == 1 else 'epochs'}); {progress}",
            f"train.num_epochs={max(2, epochs) * -(-2 * _FEW // max(1, evidence.num_steps))}, or a smaller "
            "train.batch_size",
        )


def _rise(evidence: Evidence) -> float:
    """By which share the last epoch has raised the dev measure, at least."""
    if len(evidence.dev) > 1 and TRAINED in evidence.held_out:
        # As uncertain as the mean itself: the two are of the same queries, so it is less.
        found = intervals.mean(evidence.held_out[TRAINED])
        return (evidence.dev[-1] - evidence.dev[-2] - (found.mean - found.low)) / max(evidence.dev[-1], 1e-9)
    if {TRAINED, UNTRAINED} <= evidence.held_out.keys():
        after = evidence.held_out[TRAINED]
        gained: float = intervals.mean(after - evidence.held_out[UNTRAINED]).low
        return gained / max(float(after.mean()), 1e-9)
    return 0.0
