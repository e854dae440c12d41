"""A model that has learnt its pairs and is worse than before on others."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from raydr.diagnosis import intervals
from raydr.diagnosis.checks.base import Check, Finding, Rank
from raydr.diagnosis.evidence import TRAINED, UNTRAINED, Evidence
from raydr.diagnosis.progress import Progress


class Forgetting(Check):
    """The share of what the untrained model finds of held-out queries that the trained one does not.

    A symptom; but a cause of its own where training queries are lost too while the loss has fallen by half: then what
    is minimised is something else than retrieval.

    >>> rng = np.random.default_rng(0)
    >>> before = rng.uniform(size=300)
    >>> Forgetting().examine(Evidence(held_out={"untrained": before, "trained": before * 0.6})).level
    'fault'
    """

    compares: ClassVar[str] = "the trained model with the untrained one on held-out queries (paired)"
    needs: ClassVar[str] = "there is no held-out split"
    rank: ClassVar[Rank] = "symptom"

    name: Literal["forgetting"] = "forgetting"

    def examine(self, evidence: Evidence) -> Finding | None:
        if not {TRAINED, UNTRAINED} <= evidence.held_out.keys():
            return None
        before = evidence.held_out[UNTRAINED]
        gain = intervals.mean(evidence.held_out[TRAINED] - before)
        progress = Progress.of(evidence.training)
        if progress is not None and progress.lost and evidence.is_loss_reached:
            return self.finding(
                min(progress.lost, max(0.0, -gain.high) / max(float(before.mean()), 1e-9)),
                f"what is minimised is not retrieval: the loss falls, {evidence.losses[0]:.2g} -> "
                f"{evidence.losses[-1]:.2g}, and so do {progress}, and of held-out ones {before.mean():.3f} -> "
                f"{before.mean() + gain.mean:.3f}",
                "train.loss=nce",
                advice="other queries' passages as negatives (a larger train.batch_size), a better train.ranker where "
                "its scores are learnt",
                rank="cause",
            )
        curve = f"; dev by epoch {', '.join(f'{one:.3f}' for one in evidence.dev)}" if evidence.dev else ""
        best = f"or train.num_epochs={int(np.argmax(evidence.dev)) + 1}, " if evidence.dev else ""
        return self.finding(
            max(0.0, -gain.high) / max(float(before.mean()), 1e-9),
            f"RR@10 of held-out queries {before.mean():.3f} -> {before.mean() + gain.mean:.3f} "
            f"({gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]){curve}",
            f"train.optimizer.learning_rate={evidence.learning_rate / 3:.0e}",
            advice=f"{best}train.keep=best with a dev split, training pairs of the kind that is searched",
        )
