"""Margins: differences of a retriever's scores of random passages and of a pair's own passage."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from raydr.component import Config
from raydr.data.tables import read_parquet
from raydr.errors import DataError
from raydr.models.config import ModelConfig
from raydr.models.training_config import OptimizerConfig
from raydr.noise.detectors.base import Detection, Detector, FloatArray, IntArray
from raydr.store.artifact import Artifact

#: Default epochs of a fold's training from a checkpoint that is no retriever.
NUM_EPOCHS = 2


class CrossFitConfig(Config):
    """Models that measure pairs on which they were not trained, for the detectors of mismatched pairs.

    A checkpoint that is a retriever measures all pairs without training. Any other checkpoint is trained for each fold
    on the other folds, by NCE with in-batch negatives; other settings are those of the sections ``model`` and
    ``train``. All trainings, judges, audits and trials with equal settings, model and pairs share the margins.
    """

    model: ModelConfig | None = None
    """Model to train; the section ``model`` if null. A stronger model detects more, also for the training of another
    model."""

    num_folds: int = Field(default=2, ge=2)
    """Number of folds; connected queries and passages share a fold. Each fold costs a training on the other folds."""

    num_epochs: int | None = Field(default=None, ge=0)
    """Epochs of each training. With 0 the checkpoint measures all folds without training, at the cost of encoding them.
    Null: 0, with all layers, for a checkpoint that is a retriever (of sentence-transformers or raydr); 2 for any other
    checkpoint, for example BERT. A retriever of other texts may gain from trainings (docs/experiments/detectors.md)."""

    num_random: int = Field(default=255, ge=1)
    """Random passages of the same fold that each pair is compared with."""

    num_draws: int = Field(default=8, ge=1)
    """Number of random draws for each pair; detectors average probabilities over the draws."""

    batch_size: int | None = Field(default=None, ge=2)
    """Queries of a step; ``train.batch_size`` if null. It is smaller if a fold leaves fewer queries."""

    optimizer: OptimizerConfig | None = None
    """Settings of the optimiser; ``train.optimizer`` if null. With a value, trainings with other optimisers share the
    margins."""

    seed: int | None = Field(default=None, ge=0, lt=2**32)
    """Seed of folds, batches and random passages; the run's ``seed`` if null. With a value, runs with other seeds share
    the margins."""

    def resolved(self, model: ModelConfig) -> CrossFitConfig:
        """Return the settings of a run with this section ``model``, with ``model`` and ``num_epochs`` set."""
        own = self.model or model
        whole = own.model_copy(update={"num_layers": None})
        if self.num_epochs is None and whole.is_retriever:
            return self.model_copy(update={"model": whole, "num_epochs": 0})
        num_epochs = NUM_EPOCHS if self.num_epochs is None else self.num_epochs
        return self.model_copy(update={"model": own, "num_epochs": num_epochs})

    def doubt(self, share: float | None) -> str:
        """Return a warning if the checkpoint alone may exaggerate a share of mismatched pairs; else ""."""
        if self.num_epochs or share is None or share <= 0.7:
            return ""
        return (
            "By the checkpoint alone, most of the pairs look random. If it is no retriever of such texts, "
            f"models that are trained on the other pairs detect more: cross_fit.num_epochs={NUM_EPOCHS}."
        )

    @property
    def total_epochs(self) -> int:
        """Total epochs of all trainings, in passes over the whole data; for resolved settings."""
        assert self.num_epochs is not None
        return (self.num_folds - 1) * self.num_epochs


@dataclass(frozen=True)
class PairMargins:
    """Margins of N training pairs and of N random pairs.

    Args:
        pairs_N: margin of each query with its annotated positive.
        random_N: margin of each query with a random passage; NaN with too few passages, see
            :func:`random_pair_margins`.
    """

    pairs_N: FloatArray
    random_N: FloatArray


def npc_margins(positive_scores_N: npt.ArrayLike, random_scores_NM: npt.ArrayLike) -> FloatArray:
    """Compute the margins of N pairs to M random passages each, as in NPC: logsumexp_j s_j − s⁺.

    The paper's perplexity is their soft-plus: PPL = −log( e^{s⁺} / (e^{s⁺} + Σ_j e^{s_j}) ) = log(1 + e^margin). The
    random passages are positives of other pairs; with hard negatives a right pair looks wrong. An excluded passage (a
    known positive) has score −inf. All pairs need the same M.

    Source: Zhang et al. (EMNLP Findings 2023).

    Args:
        positive_scores_N: scale · sim(query, positive), shape (N,).
        random_scores_NM: scale · sim(query, random passage), shape (N, M).

    Returns:
        float64, shape (N,).

    >>> npc_margins([2.0, 0.0], [[2.0, -np.inf], [5.0, 0.0]]).round(3).tolist()
    [0.0, 5.007]
    """
    positive_N, random_NM = _checked(positive_scores_N, random_scores_NM)
    empty_N = (random_NM == -np.inf).all(axis=1)
    if empty_N.any():
        raise DataError(
            f"all random passages of pair {int(empty_N.argmax())} are known positives; draw more random passages"
        )
    return np.asarray(np.logaddexp.reduce(random_NM, axis=1) - positive_N)


def mean_margins(positive_scores_N: npt.ArrayLike, random_scores_NM: npt.ArrayLike) -> FloatArray:
    """Compute the margins of N pairs to the mean of M random passages each: mean_j s_j − s⁺.

    The log-sum-exp of NPC is nearly the largest random score, which depends on the draw and on the frequency of the
    query's topic. The mean separates real mismatches better (docs/noise-benchmark.md).

    Args:
        positive_scores_N: scale · sim(query, positive), shape (N,).
        random_scores_NM: scale · sim(query, random passage), shape (N, M).

    Returns:
        float64, shape (N,).

    >>> mean_margins([2.0, 0.0], [[2.0, 2.0], [6.0, 0.0]]).tolist()
    [0.0, 3.0]
    """
    positive_N, random_NM = _checked(positive_scores_N, random_scores_NM)
    return np.asarray(random_NM.mean(axis=1) - positive_N)


def _checked(positive_scores_N: npt.ArrayLike, random_scores_NM: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    positive_N = np.asarray(positive_scores_N, dtype=np.float64)
    random_NM = np.asarray(random_scores_NM, dtype=np.float64)
    if positive_N.ndim != 1 or random_NM.ndim != 2 or len(positive_N) != len(random_NM) or random_NM.shape[1] == 0:
        raise DataError(
            f"pairs need positive scores of shape (N,) and random scores of shape (N, M >= 1); "
            f"got {positive_N.shape} and {random_NM.shape}"
        )
    unusable_N = ~np.isfinite(positive_N) | np.isnan(random_NM).any(axis=1) | (random_NM.max(axis=1) == np.inf)
    if unusable_N.any():
        row = int(unusable_N.argmax())
        raise DataError(
            f"scores of pair {row} are not usable (NaN or infinite): positive {positive_N[row]}, "
            f"random {random_NM[row]}; {int(unusable_N.sum())} such pairs in all"
        )
    return positive_N, random_NM


def random_pair_margins(random_scores_NM: npt.ArrayLike, column_N: npt.ArrayLike) -> FloatArray:
    """Compute NPC's margins of N queries with a random passage each, as of a mismatched pair.

    A random passage replaces the positive, and the other passages stay: logsumexp(the others) − s.

    Args:
        random_scores_NM: scores as in :func:`npc_margins`, −inf for excluded passages.
        column_N: index of the random passage, modulo the number of passages that are not excluded.

    Returns:
        float64, shape (N,), NaN for queries with fewer than two such passages.

    >>> random_pair_margins([[-np.inf, 2.0, 2.0], [1.0, -np.inf, -np.inf]], [0, 0]).round(3).tolist()
    [0.0, nan]
    """
    random_NM = np.asarray(random_scores_NM, dtype=np.float64)
    counts_NM = random_NM > -np.inf
    num_N = counts_NM.sum(axis=1)
    place_N = np.asarray(column_N) % np.maximum(num_N, 1)
    # First column whose cumulative count exceeds the index.
    chosen_N = (counts_NM.cumsum(axis=1) > place_N[:, None]).argmax(axis=1)
    margin_N = np.full(len(random_NM), np.nan)
    row_R = np.flatnonzero(num_N > 1)
    chosen_R = chosen_N[row_R]
    others_RM = random_NM[row_R]
    others_RM[np.arange(len(row_R)), chosen_R] = -np.inf
    margin_N[row_R] = np.logaddexp.reduce(others_RM, axis=1) - random_NM[row_R, chosen_R]
    return margin_N


@dataclass(frozen=True)
class Margins:
    """Margins of N pairs, each in D draws of random passages.

    Args:
        query_ids, passage_ids: ids of the pairs.
        truth: whether each pair is mismatched on purpose; null where unknown.
        fold_N: fold whose model measured each pair.
        margins_ND: margins of the pairs, see :func:`mean_margins`.
        random_ND: margins with a random passage in place of the positive, to the same other passages.
    """

    query_ids: pa.ChunkedArray
    passage_ids: pa.ChunkedArray
    truth: pa.ChunkedArray
    fold_N: NDArray[np.int64]
    margins_ND: NDArray[np.float64]
    random_ND: NDArray[np.float64]

    @classmethod
    def of(cls, table: pa.Table) -> Margins:
        """Read the rows of a ``margins`` artefact."""
        return cls(
            table["query_id"],
            table["passage_id"],
            table["truth"],
            table["fold"].to_numpy(),
            _numbers(table["margin"]),
            _numbers(table["random_pair"]),
        )

    @property
    def margin_N(self) -> NDArray[np.float64]:
        """Mean over the draws, for display and ranking."""
        return np.asarray(self.margins_ND.mean(axis=1))

    @property
    def random_N(self) -> NDArray[np.float64]:
        """Margins of random pairs in a single draw; their means over draws would have too small a spread."""
        return self.random_ND[:, 0]

    def detect(self, detector: Detector) -> Detection:
        """Apply a detector to all pairs."""
        return detect_over_draws(detector, self.margins_ND, self.random_ND, self.fold_N)


def _numbers(lists: pa.ChunkedArray) -> NDArray[np.float64]:
    """Return a column of lists of equal length as a matrix."""
    width = lists.type.list_size
    return np.asarray(lists.combine_chunks().flatten().to_numpy(zero_copy_only=False)).reshape(-1, width)


def detect_over_draws(
    detector: Detector, margins_ND: FloatArray, random_ND: FloatArray, fold_N: IntArray | None = None
) -> Detection:
    """Detect mismatched pairs from D draws: p(clean) is its mean over the draws.

    The mean makes flags near the boundary independent of a single draw, and the flagged share less variable
    (docs/experiments/detectors.md).

    Args:
        detector: detector of each draw.
        margins_ND: margins of the pairs, see :func:`mean_margins`.
        random_ND: margins of the random pairs, NaN if missing.
        fold_N: fold of each pair, see :meth:`raydr.noise.detectors.base.Detector.detect`.

    Returns:
        The detection; with several draws it has no fit, and a reason only if every draw was inconclusive.
    """
    detections = [detector.detect(margins_ND[:, at], random_ND[:, at], fold_N) for at in range(margins_ND.shape[1])]
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


def compared_with_random(margin: float) -> str:
    """Return a comparison, in words, of a pair's score with random passages, in units of scale · similarity.

    >>> compared_with_random(4.0), compared_with_random(-0.5)
    ('random passages score 4.0 higher', 'random passages score 0.5 lower')
    """
    return f"random passages score {abs(margin):.1f} {'higher' if margin > 0 else 'lower'}"


def read_margins(margins: Artifact) -> Margins:
    """Read a ``margins`` artefact; pairs follow the order of the judgments."""
    return Margins.of(pa.concat_tables([read_parquet(margins.local(name)) for name in margins.parts("measures")]))
