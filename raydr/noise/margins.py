"""Cross-fitting: pairs, and random ones in their place, are measured by models that have not seen them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from raydr.component import Config
from raydr.data.schema import read_parquet
from raydr.models.config import ModelConfig
from raydr.models.training_config import OptimizerConfig
from raydr.noise.detectors.base import Detection, Detector, FloatArray, IntArray
from raydr.store.artifact import Artifact


class CrossFitConfig(Config):
    """Short trainings on all folds of the pairs but one each, which measure the pairs of the fold that was left out.

    They learn by plain NCE with in-batch negatives; what is not said here is as the sections ``model`` and ``train``
    have it. Made once, and shared by all trainings, judges, audits and trials for which these settings, the model and
    the pairs are the same.
    """

    model: ModelConfig | None = None
    """What is trained: as the section ``model`` if null. A stronger one finds more, whatever is trained on what it
    finds."""

    num_folds: int = Field(default=2, ge=2)
    """Into how many folds the pairs are cut; queries and passages that hang together stay together. Each costs a
    training on the others."""

    num_epochs: int = Field(default=2, ge=0)
    """Of each training; with 0 the checkpoint as it is, which has seen none of the pairs either, measures all folds:
    for the price of encoding them."""

    num_random: int = Field(default=255, ge=1)
    """Random passages of the same fold that each pair is measured against."""

    num_draws: int = Field(default=8, ge=1)
    """How often they are drawn for each pair; detectors take the mean of the probabilities that these lead to."""

    batch_size: int | None = Field(default=None, ge=2)
    """``train.batch_size`` if null; less where a fold leaves fewer queries."""

    optimizer: OptimizerConfig | None = None
    """``train.optimizer`` if null; set, it lets trainings with other optimisers share the same folds."""

    seed: int | None = Field(default=None, ge=0)
    """Draws folds, batches and random passages: the run's ``seed`` if null; set, it lets other seeds share them."""


@dataclass(frozen=True)
class Margins:
    """Of N pairs, each measured D times against other random passages.

    Args:
        query_ids, passage_ids: of the pairs.
        truth: whether each is mismatched on purpose; null where nothing is known.
        fold_N: whose model measured it.
        perplexities_ND: of the pairs.
        random_ND: of a random passage in the positive's place, against the same others.
    """

    query_ids: pa.ChunkedArray
    passage_ids: pa.ChunkedArray
    truth: pa.ChunkedArray
    fold_N: NDArray[np.int64]
    perplexities_ND: NDArray[np.float64]
    random_ND: NDArray[np.float64]

    @classmethod
    def of(cls, table: pa.Table) -> Margins:
        """From rows as a ``margins`` artefact has them."""
        return cls(
            table["query_id"],
            table["passage_id"],
            table["truth"],
            table["fold"].to_numpy(),
            _numbers(table["perplexity"]),
            _numbers(table["random_pair"]),
        )

    @property
    def perplexity_N(self) -> NDArray[np.float64]:
        """The mean over the draws, for people and for ranking."""
        return np.asarray(self.perplexities_ND.mean(axis=1))

    @property
    def random_N(self) -> NDArray[np.float64]:
        """Of one random pair each: means of several would lie closer together than pairs do."""
        return self.random_ND[:, 0]

    def detect(self, detector: Detector) -> Detection:
        """What a detector makes of all pairs."""
        return detect_over_draws(detector, self.perplexities_ND, self.random_ND, self.fold_N)


def _numbers(lists: pa.ChunkedArray) -> NDArray[np.float64]:
    """A column of lists of equal length as a matrix."""
    width = lists.type.list_size
    return np.asarray(lists.combine_chunks().flatten().to_numpy(zero_copy_only=False)).reshape(-1, width)


def detect_over_draws(
    detector: Detector, perplexities_ND: FloatArray, random_ND: FloatArray, fold_N: IntArray | None = None
) -> Detection:
    """What a detector finds of N pairs that were measured D times: p(clean) is its mean over the draws.

    A pair near the boundary is no longer flagged or not by the luck of one draw, and the share that is flagged varies
    less (docs/experiments/detectors.md).

    Args:
        detector: asked for each draw.
        perplexities_ND: of the pairs.
        random_ND: of the random pair in the place of each, NaN where there is none.
        fold_N: which model measured each, as :meth:`raydr.noise.detectors.base.Detector.detect` takes it.

    Returns:
        The detection; with several draws without a fit, and with a reason only if no draw could be judged.
    """
    detections = [
        detector.detect(perplexities_ND[:, at], random_ND[:, at], fold_N) for at in range(perplexities_ND.shape[1])
    ]
    shares = [detection.share_mismatched for detection in detections if detection.share_mismatched is not None]
    if len(detections) == 1 or not shares:
        return detections[0]
    log_posterior_N = np.logaddexp.reduce([detection.log_posterior for detection in detections]) - np.log(
        len(detections)
    )
    log_posterior_N = np.minimum(log_posterior_N, 0.0)
    return replace(
        detections[0],
        clean=detections[0].clean if detector.reads_draws_alone else detector.is_clean(log_posterior_N),
        log_posterior=log_posterior_N,
        fit=None,
        reason="",
        share_mismatched=float(np.mean(shares)),
    )


def read_margins(margins: Artifact) -> Margins:
    """Read a ``margins`` artefact, in the order of the judgments."""
    return Margins.of(pa.concat_tables([read_parquet(margins.local(name)) for name in margins.parts("measures")]))
