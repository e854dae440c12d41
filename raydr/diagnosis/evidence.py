"""What the checks look at: arrays that were measured once, on samples of queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from raydr.diagnosis import intervals
from raydr.evaluation.significance import Interval

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
#: The readers: BM25, BM25 over texts cut as the model has them, the model before training and after, and the model of
#: another fold of the pairs.
BM25, BM25_CUT, UNTRAINED, TRAINED, CROSS_FITTED = "bm25", "bm25, texts cut", "untrained", "trained", "cross-fitted"


@dataclass(frozen=True)
class Lengths:
    """Tokens of the texts of one side.

    Args:
        tokens_N: of each text of a sample, before it is cut.
        max_length: tokens that are kept.
    """

    tokens_N: NDArray[np.int64]
    max_length: int

    @property
    def share_cut(self) -> float:
        """The share of all tokens that is never read."""
        return float(np.maximum(self.tokens_N - self.max_length, 0).sum() / max(1, self.tokens_N.sum()))

    @property
    def fitting(self) -> int:
        """The length that 95 % of the texts fit into."""
        return int(np.quantile(self.tokens_N, 0.95, method="inverted_cdf")) if len(self.tokens_N) else 0


@dataclass(frozen=True)
class Evidence:
    """What is known of one training; what is empty was not measured.

    Args:
        split: the held-out split that was measured on.
        num_ranked: passages that queries were searched in.
        num_passages: of the corpus.
        held_out: RR@10 of each held-out query, by reader.
        training: the same of training queries, untrained and trained.
        p_held_out, p_training: by reader, of each pair the share of other pairs' passages that suit the query as well
            or better (ties at random): uniform for mismatched pairs. The trained model has seen none but held-out ones.
        other_kind: of training queries, the share that no held-out query is like, or the other way round, at least.
        similarities: by reader (Q, C), of each held-out query with its passage, first, and with others', as many as a
            batch has.
        scale: what training multiplies similarities by.
        vectors_PD: of passages by the trained model.
        outscores: by reader, whether each hard negative that training draws suits as well as its positive or better; of
            queries whose pair itself looks right, and without copies of the positive.
        leaked: by held-out split, whether each of its queries is trained on, word for word or nearly.
        unanswered: by split, whether no passage of the corpus is a positive of the query.
        repeated: by what, whether each is there again under another name that counts as wrong.
        lengths: by side.
        losses, dev: of each epoch.
        num_steps: of the whole training.
        learning_rate: at its highest.
        weight_size: root mean square of the weight matrices before training.
    """

    split: str = ""
    num_ranked: int = 0
    num_passages: int = 0
    held_out: Mapping[str, FloatArray] = field(default_factory=dict)
    training: Mapping[str, FloatArray] = field(default_factory=dict)
    p_held_out: Mapping[str, FloatArray] = field(default_factory=dict)
    p_training: Mapping[str, FloatArray] = field(default_factory=dict)
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
        """Whether the loss has fallen by half or more: what is minimised was learnt, whatever it is."""
        return len(self.losses) > 1 and self.losses[-1] < self.losses[0] / 2

    @property
    def step_size(self) -> float:
        """How far one step of AdamW moves a weight at most, relative to the weights: learning rate / their size."""
        return self.learning_rate / self.weight_size


#: A training that, with 97.5 % confidence, has closed less than this of what there was to learn has learnt nothing.
_LITTLE = 0.1


@dataclass(frozen=True)
class Progress:
    """RR@10 of queries.

    Args:
        before: its mean by the untrained model.
        gain: what training has added, paired.
    """

    before: float
    gain: Interval

    @classmethod
    def of(cls, ranks: Mapping[str, FloatArray]) -> Progress | None:
        """By reader, of training or of held-out queries; None where it was not measured."""
        if TRAINED not in ranks or UNTRAINED not in ranks:
            return None
        before = ranks[UNTRAINED]
        return cls(float(before.mean()), intervals.mean(ranks[TRAINED] - before))

    @property
    def left(self) -> float:
        """What is left to learn, at least, if next to nothing was learnt; else 0."""
        room = 1.0 - self.before
        return room - self.gain.high if 0.0 <= self.gain.high <= _LITTLE * room else 0.0

    @property
    def lost(self) -> float:
        """The share of what the untrained model finds that the trained one does not, at least."""
        return max(0.0, -self.gain.high) / max(self.before, 1e-9)

    def __str__(self) -> str:
        return f"RR@10 of training queries {self.before:.3f} -> {self.before + self.gain.mean:.3f}"
