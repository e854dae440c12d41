"""Sections of ``train``: dev retrieval, the teacher, pair detection, the guide, co-teaching."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from raydr.component import Config, Pluggable
from raydr.data.parts import Scope
from raydr.evaluation.metrics import MeasureName
from raydr.noise.detectors.base import Detector
from raydr.noise.detectors.local_fdr import LocalFdrDetector
from raydr.noise.judges.margin import MarginLimit

#: Default half-life of a teacher in epochs, and momentum in the key of trainings without a teacher.
_HALF_LIFE, _UNASKED_MOMENTUM = 2.0, 0.99


class DevConfig(Config):
    """Retrieval on the dev split after each epoch, against a part of the corpus."""

    max_queries: int = Field(default=500, ge=1)
    """Maximum of dev queries, chosen by (seed, query_id)."""

    random_passages: int = Field(default=5000, ge=0)
    """Random passages besides the dev queries' positives and negatives."""

    scope: Scope = "own"
    """Partitions in which a dev query is searched, and from which random passages are drawn."""

    measure: MeasureName = "RR@10"
    """The measure that chooses the checkpoint, in ir-measures' notation; higher is better."""

    patience: int | None = Field(default=None, ge=1)
    """Epochs without a better dev measure after which training ends; never if null."""


class TeacherConfig(Config):
    """The EMA teacher, for losses that read it."""

    momentum: Annotated[float, Field(ge=0, lt=1)] | Literal["auto"] = "auto"
    """α: after each step the teacher becomes α · teacher + (1 − α) · student. ``auto``: a half-life of two epochs."""

    half_life: float | None = Field(default=None, gt=0)
    """Epochs after which the teacher's weights count half, in place of ``momentum``; the lag then does not depend on
    the sizes of batches and data."""

    def resolved(self, is_read: bool) -> TeacherConfig:
        """Return the settings with ``auto`` written out.

        Args:
            is_read: whether the loss reads a teacher. Without a teacher all settings resolve to the same value.
        """
        if not is_read:
            return TeacherConfig(momentum=_UNASKED_MOMENTUM)
        if self.momentum != "auto":
            return self
        return TeacherConfig(momentum=_UNASKED_MOMENTUM, half_life=self.half_life or _HALF_LIFE)

    def momentum_of(self, epoch_steps: float) -> float:
        """Return the teacher's momentum α for an epoch of ``epoch_steps`` steps.

        >>> round(TeacherConfig().momentum_of(39), 4), round(TeacherConfig(half_life=1).momentum_of(39), 4)
        (0.9912, 0.9824)
        """
        half_life = _HALF_LIFE if self.half_life is None and self.momentum == "auto" else self.half_life
        return float(self.momentum) if half_life is None else float(0.5 ** (1 / (half_life * epoch_steps)))


class PairDetectionConfig(Config):
    """Detection of mismatched training pairs, after the loss's warm-up. The defaults are recommended."""

    detector: Annotated[Detector, Pluggable()] = LocalFdrDetector()
    """The detector, from margins to flags: ``local_fdr`` for cross-fitted margins. For margins of the model in training
    ``gaussian`` is the paper's detector, and ``anchored`` flags fewer clean pairs."""

    margins: Literal["cross_fitted", "model"] = "cross_fitted"
    """The models that measure the pairs. ``cross_fitted``: those of the section ``cross_fit``, once, each on pairs that
    it was not trained on. ``model``: the model in training, before every epoch. ``num_random``, ``repeat`` and
    ``against`` apply to ``model``."""

    num_random: int = Field(default=255, ge=1)
    """Random passages (positives of other pairs) that each pair is compared with."""

    repeat: Literal["each_epoch", "once"] = "each_epoch"
    """The time of detection. ``each_epoch``: before every epoch; ``once``: only after the warm-up (an ablation of the
    paper)."""

    against: Literal["random", "hard"] = "random"
    """The passages that a pair is compared with: random passages, or the query's hard negatives (an ablation of the
    paper)."""

    weights: Literal["flags", "posterior"] = "flags"
    """ŷ of the loss: 0 for a flagged pair and 1 for others, or p(clean) of every pair."""

    @model_validator(mode="after")
    def _check_random_pairs(self) -> PairDetectionConfig:
        if self.against == "hard" and self.margins == "cross_fitted":
            raise ValueError(
                "cross-fitted margins are measured against random passages: set margins to model, or against to random"
            )
        if self.against == "hard" and self.detector.reads_random_pairs:
            raise ValueError(
                f"detector {self.detector.name} compares with random pairs: against must be random, not hard"
            )
        return self


class GuideConfig(MarginLimit):
    """GIST during training: the exclusion of candidates that a guide scores like positives.

    The guide is the model of ``judge.guide``. A candidate is excluded if its score for the query exceeds that of the
    positive less a margin; the paper's margin is 0. The guide encodes training queries and corpus once, before
    training.
    """


class CoTeachingConfig(Config):
    """Two networks that choose each other's training pairs; the network that is better on dev is the result.

    The second network starts as a copy of the first; dropout makes them differ.
    """

    noise_rate: float | None = Field(default=None, ge=0.0, lt=1.0)
    """ε, the assumed share of mismatched pairs; if null, the share that ``pair_detection`` flags."""

    ramp_epochs: int = Field(default=10, ge=1)
    """T_k, the number of epochs in which the excluded share grows to ε."""

    def keep_share(self, epoch: int, share_flagged: float | None) -> float:
        """Return R(T), the share of each batch that each network learns from after T = ``epoch`` finished epochs.

        R(T) = 1 − min(T / T_k · ε, ε). The share falls from 1, since the networks cannot recognise noise at first, to
        1 − ε. It is 1 before the first detection.

        Source: Han et al., Co-teaching (NeurIPS 2018).

        >>> schedule = CoTeachingConfig(noise_rate=0.4, ramp_epochs=2)
        >>> [round(schedule.keep_share(epoch, None), 2) for epoch in range(4)]
        [1.0, 0.8, 0.6, 0.6]
        """
        rate = share_flagged if self.noise_rate is None else self.noise_rate
        return 1.0 - min(epoch / self.ramp_epochs, 1.0) * min(rate or 0.0, 0.99)
