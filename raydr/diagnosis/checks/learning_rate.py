"""A learning rate that destroys what the model knew, or hardly moves it."""

from __future__ import annotations

from typing import ClassVar, Literal

from raydr.diagnosis.checks.base import Check, Finding
from raydr.diagnosis.evidence import Evidence
from raydr.diagnosis.progress import Progress

#: Steps of about a thousandth of the weights are usual (Karpathy, CS231n).
_USUAL_STEP = 1e-3


class LearningRate(Check):
    """Too hot: the model finds the passages of its own training queries less well than before, its steps were not
    small, and its loss has not fallen by half either. Too cold: it has learnt next to nothing of them, and its steps
    were below a tenth of what is usual.

    >>> import numpy as np
    >>> before = np.random.default_rng(0).uniform(size=300)
    >>> for after, rate in ((before / 10, 1e-2), (before + 0.001, 2e-7), (before + 0.2, 2e-7)):
    ...     found = Evidence(training={"untrained": before, "trained": after}, learning_rate=rate, weight_size=0.05)
    ...     print(LearningRate().examine(found).level)
    fault
    fault
    ok
    """

    compares: ClassVar[str] = "the trained model with the untrained one on training queries (paired)"
    needs: ClassVar[str] = "there are no training queries"

    name: Literal["learning_rate"] = "learning_rate"

    def examine(self, evidence: Evidence) -> Finding | None:
        progress = Progress.of(evidence.training)
        if progress is None:
            return None
        rate, step = evidence.learning_rate, evidence.step_size
        if is_cold := step < _USUAL_STEP / 10:
            severity, better = progress.left, _USUAL_STEP / 2 * evidence.weight_size
        else:
            is_hot = step > _USUAL_STEP and not evidence.is_loss_reached
            severity, better = progress.lost if is_hot else 0.0, rate / 30
        losses = " -> ".join(f"{one:.2f}" for one in (*evidence.losses[:1], *evidence.losses[1:][-1:]))
        told = f"{progress}, loss {losses or 'unknown'}; a step moves weights by up to {step:.1e} of their size"
        return self.finding(
            severity,
            f"too {'cold' if is_cold else 'hot'}: {told}" if severity else told,
            f"train.optimizer.learning_rate={better:.0e}",
            advice=f"(now {rate:.0e})",
        )
