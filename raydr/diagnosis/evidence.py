"""Evidence of the checks: arrays measured once, on samples of queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from raydr.diagnosis import intervals
from raydr.evaluation.significance import Interval

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
#: Readers: BM25, BM25 on truncated texts, the model before and after training, and a model of another fold.
BM25, BM25_CUT, UNTRAINED, TRAINED, CROSS_FITTED = "bm25", "bm25, texts cut", "untrained", "trained", "cross-fitted"


@dataclass(frozen=True)
class Lengths:
    """Token counts of the texts of one side.

    Args:
        tokens_N: tokens of each sampled text, before truncation.
        max_length: truncation length.
    """

    tokens_N: NDArray[np.int64]
    max_length: int

    @property
    def share_cut(self) -> float:
        """Share of all tokens that is truncated."""
        return float(np.maximum(self.tokens_N - self.max_length, 0).sum() / max(1, self.tokens_N.sum()))

    @property
    def fitting(self) -> int:
        """Length that fits 95 % of the texts."""
        return int(np.quantile(self.tokens_N, 0.95, method="inverted_cdf")) if len(self.tokens_N) else 0


@dataclass(frozen=True)
class Evidence:
    """Measurements of a training; empty fields were not measured.

    Args:
        split: held-out split of the measures.
        num_ranked: number of searched passages.
        num_passages: number of passages in the corpus.
        held_out: RR@10 of each held-out query, by reader.
        training: RR@10 of training queries, untrained and trained.
        p_held_out, p_training: by reader, for each pair the share of other pairs' passages that suit the query at least
            as well (ties at random): uniform for mismatched pairs. Only ``p_held_out`` has the trained reader.
        same_pairs: whether the held-out split was held out of the training pairs, whose mistakes it then shares.
        other_kind: lower bound of the share of queries unlike those of the other split.
        similarities: by reader (Q, C), of each held-out query with its own passage first, then with as many others as a
            batch has.
        scale: factor of similarities in training.
        vectors_PD: passage vectors of the trained model.
        outscores: by reader, whether each hard negative drawn in training scores at least as high as its positive; only
            of queries whose pair looks right, without copies of the positive.
        leaked: by held-out split, whether each query is in the training split, verbatim or nearly.
        unanswered: by split, whether the corpus has no positive of each query.
        repeated: by kind, whether each item has a copy that counts as wrong.
        lengths: token counts of each side.
        losses, dev: loss and dev measure of each epoch.
        num_steps: steps of the whole training.
        learning_rate: highest learning rate.
        weight_size: root mean square of the weight matrices before training.
    """

    split: str = ""
    num_ranked: int = 0
    num_passages: int = 0
    held_out: Mapping[str, FloatArray] = field(default_factory=dict)
    training: Mapping[str, FloatArray] = field(default_factory=dict)
    p_held_out: Mapping[str, FloatArray] = field(default_factory=dict)
    p_training: Mapping[str, FloatArray] = field(default_factory=dict)
    same_pairs: bool = False
    other_kind: float = 0.0
    similarities: Mapping[str, FloatArray] = field(default_factory=dict)
    scale: float = 1.0
    vectors_PD: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    outscores: Mapping[str, BoolArray] = field(default_factory=dict)
    leaked: Mapping[str, BoolArray] = field(default_factory=dict)
    unanswered: Mapping[str, BoolArray] = field(default_factory=dict)
    repeated: Mapping[str, BoolArray] = field(default_factory=dict)
    lengths: Mapping[str, Lengths] = field(default_factory=dict)
    losses: tuple[float, ...] = ()
    dev: tuple[float, ...] = ()
    num_steps: int = 0
    learning_rate: float = 0.0
    weight_size: float = 1.0

    @property
    def is_loss_reached(self) -> bool:
        """Whether the loss has at least halved."""
        return len(self.losses) > 1 and self.losses[-1] < self.losses[0] / 2

    @property
    def step_size(self) -> float:
        """Largest change of a weight in an AdamW step, relative to the weights: learning rate / weight size."""
        return self.learning_rate / self.weight_size


#: A training that, with 97.5 % confidence, gained less than this share of the possible gain has learnt nothing.
_LITTLE = 0.1


@dataclass(frozen=True)
class Progress:
    """RR@10 of queries before training, and its gain.

    Args:
        before: mean of the untrained model.
        gain: paired gain by training.
    """

    before: float
    gain: Interval

    @classmethod
    def of(cls, ranks: Mapping[str, FloatArray]) -> Progress | None:
        """Compute the progress from RR@10 by reader; None if it was not measured."""
        if TRAINED not in ranks or UNTRAINED not in ranks:
            return None
        before = ranks[UNTRAINED]
        return cls(float(before.mean()), intervals.mean(ranks[TRAINED] - before))

    @property
    def left(self) -> float:
        """Lower bound of the remaining possible gain if almost nothing was learnt; else 0."""
        room = 1.0 - self.before
        return room - self.gain.high if 0.0 <= self.gain.high <= _LITTLE * room else 0.0

    @property
    def lost(self) -> float:
        """Lower bound of the lost share of the untrained model's result."""
        return max(0.0, -self.gain.high) / max(self.before, 1e-9)

    def __str__(self) -> str:
        return f"RR@10 of training queries {self.before:.3f} -> {self.before + self.gain.mean:.3f}"
