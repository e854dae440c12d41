"""NPC's detector as a judge, which drops pairs with a high margin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raydr.component import Pluggable
from raydr.noise.detectors.base import Detection, Detector
from raydr.noise.detectors.local_fdr import LocalFdrDetector
from raydr.noise.judges.asked import Asked, AskedModels, CrossFitted
from raydr.noise.judges.base import Decision, FloatArray, SampleJudge, ScoredCandidates, SplitJudge, Verdicts
from raydr.noise.margins import Margins, npc_margins, random_pair_margins


class NPC(SplitJudge, SampleJudge):
    """Drops the training pairs whose margins are as high as those of mismatched pairs.

    The margin of a pair to random positives of other pairs comes from models that were not trained on the pair, or from
    the retriever. A detector fitted to all pairs of the split flags high margins. The score of a verdict is the margin.
    In training the same rule corrects pairs, see ``train.pair_detection``.

    Source: Zhang et al. (EMNLP Findings 2023).

    >>> rng = np.random.default_rng(0)
    >>> positive_Q = np.where(np.arange(200) < 20, 0.0, 8.0) + rng.normal(size=200)
    >>> candidates = ScoredCandidates(rng.normal(size=2000), np.arange(0, 2001, 10), positive_Q)
    >>> dropped_Q = NPC().judge(candidates).action == "drop"
    >>> int(dropped_Q[:20].sum()), int(dropped_Q[20:].sum())
    (20, 0)
    """

    sample: ClassVar[Literal["positives"]] = "positives"

    flags: ClassVar[str] = "pairs whose passage surprises as a random passage would"
    score_name: ClassVar[str] = "margin"

    measures: ClassVar[tuple[str, ...]] = ("margin", "random_pair")

    name: Literal["npc"] = "npc"
    detector: Annotated[Detector, Pluggable()] = LocalFdrDetector()
    """The detector: ``local_fdr`` suits cross-fitted margins, ``anchored`` margins of the retriever; ``gaussian`` is
    the paper's, ``calibrated`` fits strong encoders better."""

    margins: Literal["model", "cross_fitted"] = "cross_fitted"
    """Source of the margins: the retriever (``model``), or the models of the section ``cross_fit``, each for pairs that
    it was not trained on. A retriever trained on the pairs has partly learnt the mismatched pairs."""

    num_random: int = Field(default=255, ge=1)
    """Number of random positives that the retriever compares each pair with; ``cross_fit`` has its own number."""

    def asks(self, models: AskedModels) -> Asked:
        return CrossFitted() if self.margins == "cross_fitted" else super().asks(models)

    def measure(self, candidates: ScoredCandidates) -> dict[str, FloatArray]:
        sizes_Q = np.diff(candidates.offsets)
        # Excluded passages are missing from the scores; -inf keeps the shape.
        random_QM = np.full((candidates.num_queries, int(sizes_Q.max(initial=1))), -np.inf)
        random_QM[np.arange(random_QM.shape[1]) < sizes_Q[:, None]] = candidates.scores_M
        # All queries share the sample, and each query has another passage for its random pair.
        turn_Q = np.arange(candidates.num_queries)
        return {
            "margin": npc_margins(candidates.positives(self.name), random_QM),
            "random_pair": random_pair_margins(random_QM, turn_Q),
        }

    def decide(self, measures: Mapping[str, FloatArray]) -> Decision:
        return self._decided(self.detector.detect(measures["margin"], measures["random_pair"]), measures)

    def decide_margins(self, margins: Margins) -> Decision:
        measures = {"margin": margins.margin_N, "random_pair": margins.random_N, "fold": margins.fold_N}
        return self._decided(margins.detect(self.detector), measures)

    def _decided(self, detection: Detection, measures: Mapping[str, NDArray[Any]]) -> Decision:
        actions_Q = np.where(detection.clean, "keep", "drop")
        return Decision(
            Verdicts(measures["margin"], actions_Q, detection.clean.astype(np.float64)),
            detection.facts,
            {**measures, "log_posterior": detection.log_posterior},
            -np.expm1(detection.log_posterior) if not detection.reason else None,
        )
