"""A training that ended before it had learnt."""

from __future__ import annotations

from typing import ClassVar, Literal

from raydr.diagnosis import intervals
from raydr.diagnosis.checks.base import Check, Finding, Rank
from raydr.diagnosis.evidence import TRAINED, Evidence
from raydr.diagnosis.progress import Progress

#: Fewer steps than any published recipe of fine-tuning has.
_FEW = 100


class TooFewSteps(Check):
    """Next to nothing was learnt of the training queries, nor anything for held-out ones; or few steps were taken and
    the last epoch still brought something for held-out ones: then the severity is the share of a hundred that is
    missing.

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
        progress = Progress.of(evidence.training)
        if progress is None:
            return None
        num, epochs = evidence.num_steps, len(evidence.losses)
        told = (
            f"{'next to nothing was learnt: ' * (progress.left > 0)}{num:,} steps in all ({epochs} "
            f"{'epoch' if epochs == 1 else 'epochs'}); {progress}"
        )
        if num < _FEW:
            return self.finding(
                max(progress.left, 1.0 - num / _FEW if _rose(evidence) else 0.0),
                told,
                f"train.num_epochs={max(2, epochs) * -(-2 * _FEW // max(1, num))}",
                advice="or a smaller train.batch_size",
            )
        others = Progress.of(evidence.held_out)
        return self.finding(
            progress.left if others is None else min(progress.left, others.left),
            told,
            advice="is model.checkpoint a trained encoder, read with its own pooling and prefixes, and are few of its "
            f"layers frozen? If so, train.num_epochs={3 * max(1, epochs)}",
            rank="unexplained",
        )


def _rose(evidence: Evidence) -> bool:
    """Whether the last epoch has surely raised the dev measure, or the only one what is found."""
    if len(evidence.dev) > 1 and TRAINED in evidence.held_out:
        # As uncertain as the mean itself: the two are of the same queries, so it is less.
        found = intervals.mean(evidence.held_out[TRAINED])
        return evidence.dev[-1] - evidence.dev[-2] > found.mean - found.low
    others = Progress.of(evidence.held_out)
    return others is not None and others.gain.low > 0.0
