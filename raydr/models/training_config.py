"""Settings of adapters, the optimiser and the training of a cross-encoder. Light to import."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from raydr.component import Config, Pluggable
from raydr.losses.base import Loss
from raydr.losses.bce import BinaryCrossEntropy
from raydr.models.config import CrossEncoderConfig, Dtype


class LoraConfig(Config):
    """Low-rank adapters, which training changes in place of an encoder's weights."""

    rank: int = Field(default=16, ge=1)
    """r: an adapter of a layer with weights W (out, in) is B·A with A (r, in) and B (out, r)."""

    alpha: float = Field(default=32, gt=0)
    """The layer computes with W + alpha/rank · B·A, so that the learning rate does not depend on the rank."""

    dropout: float = Field(default=0.05, ge=0, lt=1)
    """Dropout of the adapters' inputs during training."""

    targets: Literal["all-linear"] | Annotated[list[str], Field(min_length=1)] = "all-linear"
    """The linear layers with an adapter: all of the encoder, or those with these names or ends of names, such as
    ``[q_proj, v_proj]``."""


class OptimizerConfig(Config):
    """AdamW and its schedule."""

    learning_rate: float = Field(default=2e-5, gt=0)
    """Maximum of the learning rate."""

    weight_decay: float = Field(default=0.01, ge=0)
    """Weight decay of matrices; biases and normalisation weights do not decay."""

    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates of the first and second moment."""

    eps: float = Field(default=1e-8, gt=0)
    """AdamW's term in the denominator."""

    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """The learning rate after the warm-up: down to 0 linearly or by half a cosine, or constant."""

    warmup_share: float = Field(default=0.1, ge=0, le=1)
    """Share of all steps in which the learning rate rises."""

    clip_norm: float | None = Field(default=1.0, gt=0)
    """Maximum of the gradient norm; no clipping if null."""

    frozen_layers: int | None = Field(default=None, ge=0)
    """Number of first layers that keep their weights, as do the word embeddings, which saves time and memory. 0 freezes
    the embeddings alone; null freezes nothing."""

    lora: LoraConfig | None = None
    """Train low-rank adapters of the layers that are not frozen. Other weights of the encoder stay unchanged; a
    projection, codes or a classifier are trained. The model is saved with the adapters added to its weights. Requires
    the package peft (``raydr[lora]``), and a higher learning rate; off if null."""


class CrossEncoderTraining(Config):
    """Training of a cross-encoder on a list of passages per query: a positive, hard and random negatives."""

    section: ClassVar[str]
    """Section of the settings in a config, for messages."""

    predicts: ClassVar[Literal["probability", "log_odds"]]
    """Result of ``sentence_transformers.CrossEncoder.predict`` with the saved model, and the score that raydr reads."""

    model: CrossEncoderConfig = CrossEncoderConfig()
    loss: Annotated[Loss, Pluggable()] = BinaryCrossEntropy()
    """The loss over a query's list; ``bce``: each passage by itself, which trains probabilities."""

    num_epochs: int = Field(default=1, ge=0)
    """Passes over the training queries; 0 uses the checkpoint unchanged, which must be a cross-encoder."""

    batch_size: int = Field(default=16, ge=1)
    """Queries of a step, over all workers; each has a positive and its negatives."""

    accumulation_steps: int = Field(default=1, ge=1)
    """Micro-batches of a step, for lists that do not fit into memory; a query's loss depends on its own list."""

    num_hard_negatives: int
    num_random_negatives: int

    optimizer: OptimizerConfig = OptimizerConfig()
    dtype: Dtype = "auto"
    """As ``train.dtype``."""

    @property
    def passages_per_query(self) -> int:
        """Number of passages in a list."""
        return 1 + self.num_hard_negatives + self.num_random_negatives

    @model_validator(mode="after")
    def _has_negatives(self) -> CrossEncoderTraining:
        if self.num_epochs and not self.num_hard_negatives + self.num_random_negatives:
            raise ValueError("a cross-encoder needs negatives: set num_hard_negatives or num_random_negatives")
        if self.batch_size % self.accumulation_steps:
            raise ValueError(
                f"batch_size {self.batch_size} is not divisible by accumulation_steps {self.accumulation_steps}"
            )
        return self

    @model_validator(mode="after")
    def _loss_finds_what_it_reads(self) -> CrossEncoderTraining:
        loss = self.loss
        problems = (
            (loss.needs_teacher, "needs an EMA teacher, and a cross-encoder has none: take nce, rcl or bce"),
            (loss.reads_ranker_scores, "reads scores of another ranker: take nce, rcl or bce"),
            (
                loss.reads_draw_probabilities,
                "corrects for draw probabilities, and here negatives are drawn uniformly: take nce, rcl or bce",
            ),
            (
                loss.reads_pair_flags,
                "reads flags of mismatched pairs, and a cross-encoder's training detects none: take nce, rcl or bce, "
                "and let a judge of pairs remove mismatched pairs (judge.judges)",
            ),
        )
        for applies, problem in problems:
            if applies:
                raise ValueError(f"the loss {loss.name!r} {problem}")
        return self
