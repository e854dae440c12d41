"""Detection of mismatched training pairs by margins that were cross-fitted before training began."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from raydr.data.corpus import Corpus
from raydr.data.examples import Examples
from raydr.models.dual_encoder import DualEncoder
from raydr.noise.detectors.base import Detection
from raydr.noise.margins import Margins
from raydr.noise.perplexity import Perplexities
from raydr.training.batches import positive_row
from raydr.training.collectives import broadcast_object, rank
from raydr.training.detection import PairFlags
from raydr.training.sections import PairDetectionConfig


class CrossFittedDetector:
    """Flags pairs by margins of models that have not seen them; the model in training is not used.

    The detector is fitted once, to all measured pairs. An epoch's flags are those of the positives that it uses. A
    positive without a margin counts as clean.

    Args:
        examples, corpus: what is trained on.
        margins: of the pairs.
        config: the detector.
        positive: which positive an epoch uses, ``train.positive``.
        seed: of the training.
    """

    def __init__(
        self,
        examples: Examples,
        corpus: Corpus,
        margins: Margins,
        config: PairDetectionConfig,
        positive: Literal["drawn", "first"],
        seed: int,
    ) -> None:
        self.examples = examples
        self.margins = margins
        self.config = config
        self.positive = positive
        self.seed = seed
        rows = corpus.rows_of_column(margins.passage_ids).tolist()
        pairs = zip(margins.query_ids.to_pylist(), rows, strict=True)
        self.place_of = {pair: at for at, pair in enumerate(pairs)}
        self.detection: Detection | None = None

    @property
    def once(self) -> bool:
        """Whether the first detection is that of all epochs."""
        return self.positive == "first" or len(self.examples.positives.values) == len(self.examples)

    def detect(self, model: DualEncoder, epoch: int, dtype: torch.dtype) -> PairFlags:
        """Return the flags for the coming epoch, the same on every rank; ``model`` and ``dtype`` are not used."""
        perplexity_M, random_M = self.margins.perplexity_N, self.margins.random_N
        if self.detection is None:
            detection = self.margins.detect(self.config.detector) if rank() == 0 else None
            self.detection = broadcast_object(detection)
        place_N = np.array([self._place(at, epoch) for at in range(len(self.examples))], dtype=np.int64)
        known_N = place_N >= 0
        detection = replace(
            self.detection,
            clean=np.where(known_N, self.detection.clean[place_N], True),
            log_posterior=np.where(known_N, self.detection.log_posterior[place_N], 0.0),
        )
        return PairFlags(
            Perplexities(np.where(known_N, perplexity_M[place_N], 0.0), np.where(known_N, random_M[place_N], np.nan)),
            detection,
        )

    def _place(self, at: int, epoch: int) -> int:
        row = positive_row(self.examples, at, epoch, self.seed, self.positive)
        return self.place_of.get((self.examples.query_ids[at], row), -1)
