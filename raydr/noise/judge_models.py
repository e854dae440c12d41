"""How the models that judges have of their own are trained."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from raydr.component import Config, Resolved
from raydr.losses.schedule import BetaSchedule
from raydr.models.training_config import CrossEncoderTraining, OptimizerConfig


class SieveOptimizerConfig(OptimizerConfig):
    """AdamW with the paper's small, constant learning rate."""

    learning_rate: float = Field(default=1e-7, gt=0)
    schedule: Literal["linear", "cosine", "constant"] = "constant"
    warmup_share: float = Field(default=0.0, ge=0, le=1)


class SieveBetaSchedule(BetaSchedule):
    """β that is on from the first epoch, since the retriever is trained already."""

    start_epoch: int = Field(default=0, ge=0)


class SieveConfig(Config):
    """How the throw-away model of the passage sieve is trained, from a copy of the retriever that is judged with."""

    beta: SieveBetaSchedule = SieveBetaSchedule(final=0.5)
    """β of the robust contrastive loss."""

    num_epochs: int = Field(default=1, ge=1)
    """Of the throw-away model."""

    batch_size: int = Field(default=16, ge=2)
    """Queries in one step; a query's candidates are its own negatives alone."""

    num_candidates: int | None = Field(default=None, ge=1)
    """Negatives of each query that are trained on, best ranks first; ``negatives.depth`` if null. All are judged."""

    scale: float | None = Field(default=None, gt=0)
    """τ while training; the retriever's own if null. The judgment does not depend on it."""

    optimizer: SieveOptimizerConfig = SieveOptimizerConfig()

    @model_validator(mode="after")
    def _beta_is_on(self) -> SieveConfig:
        if self.beta.start_epoch >= self.num_epochs:
            raise ValueError(
                f"beta.start_epoch is {self.beta.start_epoch} and num_epochs {self.num_epochs}: β would never be on; "
                "set start_epoch lower"
            )
        return self


class LanguageModelConfig(CrossEncoderTraining):
    """A language model that the judges ``language_model`` and ``language_model_negatives`` read with, as it comes."""

    section: ClassVar[str] = "language_model"
    predicts: ClassVar[Literal["probability"]] = "probability"

    num_epochs: Literal[0] = 0
    num_hard_negatives: Literal[0] = 0
    num_random_negatives: Literal[0] = 0


class ClassifierConfig(CrossEncoderTraining):
    """How the cross-encoder of the judges ``classifier`` and ``pair_classifier`` is trained."""

    section: ClassVar[str] = "judge.classifier"
    predicts: ClassVar[Literal["probability"]] = "probability"

    num_hard_negatives: int = Field(default=1, ge=0)
    """h, candidates of a query drawn as negatives in each epoch."""

    num_random_negatives: int = Field(default=4, ge=0)
    """r, random passages drawn as further negatives. Where a share ε of the pairs is mismatched, a passage that shares
    words with its query is right with probability (1 − ε) / (1 − ε + h), one that shares none with ε / (ε + r): with as
    many hard as random negatives and ε = 0.5 nothing can be learnt. So r is four times h."""

    pairs_kept_by: Annotated[str, Resolved] = ""
    """A judge of pairs: the cross-encoder learns from the pairs that this judge keeps, and judges all of them. From the
    whole split if empty."""

    num_folds: Annotated[int, Resolved] = Field(default=1, ge=1)
    """1: one cross-encoder, trained on the queries that it judges, as RocketQA does. More: the training split is cut
    into so many folds, queries and passages that hang together in one, and each fold is judged by a cross-encoder that
    was trained on the others and has learnt none of its labels by heart. Each fold costs a training."""

    @model_validator(mode="after")
    def _gives_probabilities(self) -> ClassifierConfig:
        if self.loss.name != "bce":
            raise ValueError(
                f"the judges' thresholds are probabilities of relevance, which the loss {self.loss.name!r} does not "
                "give: take bce"
            )
        return self
