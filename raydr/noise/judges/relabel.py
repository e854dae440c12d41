"""Mismatched pairs are dropped, and where another passage surely is the right one it takes the place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from raydr.component import Pluggable
from raydr.noise.detectors.base import Detector, IntArray
from raydr.noise.detectors.local_fdr import LocalFdrDetector
from raydr.noise.judges.asked import Asked, AskedModels, CrossFitted
from raydr.noise.judges.base import BoolArray, Decision, FloatArray, SampleJudge, ScoredCandidates, SplitJudge
from raydr.noise.judges.npc import NPC
from raydr.noise.margins import Margins

#: Folder of the parts with new passages, beside those with verdicts.
RELABELLED = "relabelled"


class Relabel(SplitJudge, SampleJudge):
    """Drops what ``npc`` drops on cross-fitted margins, and gives such a query the passage that surely is right.

    The model that has not seen a query's pair searches the corpus. The best passage that the query is not annotated
    with stands out from the next ones by

        u = log Σ_{k ≤ depth} exp(τ s_k) − τ s_1   (scores best first, annotated passages and copies left out).

    Queries whose pair is surely right show how u is distributed where the best other passage is wrong (if a few have a
    second right passage, less is relabelled). Against that null, P(right | u) of the queries without a right pair is
    that of :class:`raydr.noise.detectors.local_fdr.LocalFdrDetector`, fold by fold. Above ``sure`` the passage becomes
    the query's positive. What was relabelled is kept beside the verdicts, with its probability.

    Source: none; the idea of the second reader is RocketQA's and RLHN's, the local false-discovery rate Efron's.
    """

    sample: ClassVar[Literal["positives"]] = "positives"
    flags: ClassVar[str] = "pairs that are as surprising among random passages as mismatched ones would be"
    score_name: ClassVar[str] = "perplexity"
    measures: ClassVar[tuple[str, ...]] = NPC.measures

    name: Literal["relabel"] = "relabel"
    detector: Annotated[Detector, Pluggable()] = LocalFdrDetector()
    """Which pairs are dropped, as in ``npc``."""

    sure: float = Field(default=0.9, ge=0.5, lt=1.0)
    """Relabelled where the other passage is right with more than this probability."""

    depth: int = Field(default=50, ge=2)
    """Passages of each query among which the best one must stand out."""

    def asks(self, models: AskedModels) -> Asked:
        return CrossFitted(depth=self.depth)

    def measure(self, candidates: ScoredCandidates) -> dict[str, FloatArray]:
        return NPC(detector=self.detector).measure(candidates)

    def decide(self, measures: Mapping[str, FloatArray]) -> Decision:
        return NPC(detector=self.detector).decide(measures)

    def decide_margins(self, margins: Margins) -> Decision:
        return NPC(detector=self.detector).decide_margins(margins)


def stands_out(scores_K: FloatArray, scale: float) -> float:
    """How little the first of some scores stands out from all of them, u above; 0: by far, log K: not at all.

    >>> round(stands_out(np.array([0.9, 0.9]), 20.0), 3), round(stands_out(np.array([0.9, 0.1]), 20.0), 3)
    (0.693, 0.0)
    """
    logits_K = scale * np.asarray(scores_K, dtype=np.float64)
    return float(max(0.0, np.logaddexp.reduce(logits_K) - logits_K[0]))


def probably_right(u_Q: FloatArray, wrong_Q: BoolArray, trusted_Q: BoolArray, fold_Q: IntArray) -> FloatArray:
    """P(right | u) of the best other passage of the queries that have no right pair; 0 for all others.

    Args:
        u_Q: of each query.
        wrong_Q: whether none of its pairs is right.
        trusted_Q: whether all of them surely are: these are the null.
        fold_Q: whose model has searched.

    >>> rng = np.random.default_rng(0)
    >>> u_Q = rng.uniform(1.0, 3.0, 300)
    >>> u_Q[200:250] = 0.1
    >>> wrong_Q = np.arange(300) >= 200
    >>> p_Q = probably_right(u_Q, wrong_Q, ~wrong_Q, np.zeros(300, dtype=np.int64))
    >>> int((p_Q[200:250] > 0.9).sum()), int((p_Q[250:] > 0.9).sum()), float(p_Q[:200].max())  # one by chance
    (50, 1, 0.0)
    """
    right_Q = np.zeros(len(u_Q))
    for fold in np.unique(fold_Q):
        asked_Q, null_Q = wrong_Q & (fold_Q == fold), trusted_Q & (fold_Q == fold)
        if not asked_Q.any() or not null_Q.any():
            continue
        found = LocalFdrDetector().detect(u_Q[asked_Q], u_Q[null_Q])
        if not found.reason:
            right_Q[asked_Q] = np.exp(found.log_posterior)
    return right_Q
