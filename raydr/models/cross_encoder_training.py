"""Settings of a cross-encoder's training, whatever it is for. Light to import: reading a config needs no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from raydr.component import Config, Pluggable
from raydr.losses.base import Loss
from raydr.losses.bce import BinaryCrossEntropy
from raydr.models.config import Dtype
from raydr.models.cross_encoder_config import CrossEncoderConfig
from raydr.models.optimizer_config import OptimizerConfig


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
        if loss.needs_teacher:
            raise ValueError(
                f"a cross-encoder has no EMA teacher, which the loss {loss.name!r} needs: take nce, rcl or bce"
            )
        if loss.reads_ranker_scores:
            raise ValueError(
                f"a cross-encoder learns from judgments, the loss {loss.name!r} from another ranker's scores: take "
                "nce, rcl or bce"
            )
        if loss.num_positives_at_once > 1:
            raise ValueError(f"a cross-encoder's list has one positive, the loss {loss.name!r} wants several: take nce")
        if loss.reads_draw_probabilities:
            raise ValueError(
                f"the negatives of a cross-encoder are drawn evenly, the loss {loss.name!r} has nothing to correct: "
                "take nce, rcl or bce"
            )
        if loss.reads_pair_flags:
            raise ValueError(
                f"the loss {loss.name!r} reads flags of mismatched pairs, and a cross-encoder's training makes none: "
                "take nce, rcl or bce, and have a judge of pairs leave them out (judge.judges)"
            )
        return self
