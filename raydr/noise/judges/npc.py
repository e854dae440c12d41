"""NPC's detector as a judge: pairs that surprise the retriever are taken for mismatched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from raydr.component import Pluggable
from raydr.noise.detectors.anchored import AnchoredDetector
from raydr.noise.detectors.base import Detector
from raydr.noise.judges.base import Decision, FloatArray, ScoredCandidates, SplitJudge, Verdicts
from raydr.noise.perplexity import perplexities, random_pair_perplexities


class NPC(SplitJudge):
    """Drops the training pairs whose perplexity belongs to the high component of a mixture.

    A pair is measured by its perplexity against random positives of other pairs, and flagged by a detector that is
    fitted to the perplexities of all pairs of the split. The verdict's score is the perplexity. In training the same
    rule corrects pairs instead, see ``train.pair_detection``.

    Source: Zhang et al. (EMNLP Findings 2023).

    >>> rng = np.random.default_rng(0)
    >>> positive_Q = np.where(np.arange(200) < 20, 0.0, 8.0) + rng.normal(size=200)
    >>> candidates = ScoredCandidates(rng.normal(size=2000), np.arange(0, 2001, 10), positive_Q)
    >>> dropped_Q = NPC().judge(candidates).action == "drop"
    >>> int(dropped_Q[:20].sum()), int(dropped_Q[20:].sum())
    (20, 0)
    """

    sample: ClassVar[Literal["positives"]] = "positives"

    flags: ClassVar[str] = "pairs whose perplexity among random passages belongs to the higher of two groups"
    score_name: ClassVar[str] = "perplexity"

    measures: ClassVar[tuple[str, ...]] = ("perplexity", "random_pair")

    name: Literal["npc"] = "npc"
    detector: Annotated[Detector, Pluggable()] = AnchoredDetector()
    """``gaussian`` is the paper's, ``calibrated`` fits strong encoders better, ``anchored`` also clean data."""

    num_random: int = Field(default=255, ge=1)
    """Random positives that each pair is measured against."""

    def measure(self, candidates: ScoredCandidates) -> dict[str, FloatArray]:
        sizes_Q = np.diff(candidates.offsets)
        # Passages that must not count for a query are missing from its scores: -inf keeps the shape.
        random_QM = np.full((candidates.num_queries, int(sizes_Q.max(initial=1))), -np.inf)
        random_QM[np.arange(random_QM.shape[1]) < sizes_Q[:, None]] = candidates.scores_M
        # The sample is the same for all queries: each takes another one of it for its random pair.
        turn_Q = np.arange(candidates.num_queries)
        return {
            "perplexity": perplexities(candidates.positives(self.name), random_QM),
            "random_pair": random_pair_perplexities(random_QM, turn_Q),
        }

    def decide(self, measures: Mapping[str, FloatArray]) -> Decision:
        perplexity_Q = measures["perplexity"]
        detection = self.detector.detect(perplexity_Q, measures["random_pair"])
        facts = {
            "reason": detection.reason,
            "threshold": detection.threshold,
            "fit": asdict(detection.fit) if detection.fit is not None else None,
        }
        actions_Q = np.where(detection.clean, "keep", "drop")
        return Decision(
            Verdicts(perplexity_Q, actions_Q, detection.clean.astype(np.float64)),
            facts,
            {**measures, "log_posterior": detection.log_posterior},
            -np.expm1(detection.log_posterior) if not detection.reason else None,
        )
