"""Settings of a model's training that are light to import: adapters, optimizer, cross-encoder."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from raydr.component import Config, Pluggable
from raydr.losses.base import Loss
from raydr.losses.bce import BinaryCrossEntropy
from raydr.models.config import CrossEncoderConfig, Dtype


class LoraConfig(Config):
    """Low-rank adapters, which learn in place of an encoder's own weights."""

    rank: int = Field(default=16, ge=1)
    """r: an adapter of a layer with weights W (out, in) is B·A with A (r, in) and B (out, r)."""

    alpha: float = Field(default=32, gt=0)
    """The layer computes with W + alpha/rank · B·A, so that the learning rate need not follow the rank."""

    dropout: float = Field(default=0.05, ge=0, lt=1)
    """Of what the adapters read, while training."""

    targets: Literal["all-linear"] | Annotated[list[str], Field(min_length=1)] = "all-linear"
    """The linear layers that get an adapter: all of the encoder, or those with these names or ends of names, such as
    ``[q_proj, v_proj]``."""


class OptimizerConfig(Config):
    """AdamW and its schedule."""

    learning_rate: float = Field(default=2e-5, gt=0)
    """At its highest."""

    weight_decay: float = Field(default=0.01, ge=0)
    """Of matrices; biases and normalisation weights have none."""

    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates of the first and second moment."""

    eps: float = Field(default=1e-8, gt=0)
    """AdamW's term in the denominator."""

    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """After the warm-up: down to 0 in a line or a half cosine, or constant."""

    warmup_share: float = Field(default=0.1, ge=0, le=1)
    """Share of all steps with rising learning rate."""

    clip_norm: float | None = Field(default=1.0, gt=0)
    """Largest gradient norm; no clipping if null."""

    frozen_layers: int | None = Field(default=None, ge=0)
    """The word embeddings and so many of the first layers keep the weights that they came with, which saves time and
    memory; 0: the embeddings alone; everything learns if null."""

    lora: LoraConfig | None = None
    """Learn low-rank adapters of the layers that are not frozen, all other weights of the encoder stay as they came; a
    new projection, codes or classifier learn as ever. The model is saved with the adapters added to its weights, as any
    other. Needs the package peft (``raydr[lora]``), and wants a higher learning rate; off if null."""


class CrossEncoderTraining(Config):
    """How a cross-encoder is trained on queries with a list of passages each: a positive, hard and random negatives."""

    section: ClassVar[str]
    """Where its settings stand in a config, for messages."""

    predicts: ClassVar[Literal["probability", "log_odds"]]
    """What ``sentence_transformers.CrossEncoder.predict`` gives of the saved model: what raydr reads of it."""

    model: CrossEncoderConfig = CrossEncoderConfig()
    loss: Annotated[Loss, Pluggable()] = BinaryCrossEntropy()
    """What is minimised over a query's list; ``bce``: each passage by itself, which gives probabilities."""

    num_epochs: int = Field(default=1, ge=0)
    """0 takes the checkpoint as it is: it must be a cross-encoder already."""

    batch_size: int = Field(default=16, ge=1)
    """Queries in one step, over all workers; each brings one positive and its negatives."""

    accumulation_steps: int = Field(default=1, ge=1)
    """Micro-batches of one step, for lists that do not fit into memory; a query's loss depends on its own list."""

    num_hard_negatives: int
    num_random_negatives: int

    optimizer: OptimizerConfig = OptimizerConfig()
    dtype: Dtype = "auto"
    """As ``train.dtype``."""

    @property
    def passages_per_query(self) -> int:
        """Passages of a list."""
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
                "corrects draws, and negatives are drawn evenly here: take nce, rcl or bce",
            ),
            (
                loss.reads_pair_flags,
                "reads flags of mismatched pairs, and a cross-encoder's training makes none: take nce, rcl or bce, and "
                "have a judge of pairs leave them out (judge.judges)",
            ),
        )
        for applies, problem in problems:
            if applies:
                raise ValueError(f"the loss {loss.name!r} {problem}")
        return self
