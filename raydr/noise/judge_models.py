"""Settings of the models that judges train."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from raydr.component import Config, Resolved
from raydr.losses.rcl import BetaSchedule
from raydr.models.training_config import CrossEncoderTraining, OptimizerConfig


class SieveOptimizerConfig(OptimizerConfig):
    """AdamW with the paper's small, constant learning rate."""

    learning_rate: float = Field(default=1e-7, gt=0)
    schedule: Literal["linear", "cosine", "constant"] = "constant"
    warmup_share: float = Field(default=0.0, ge=0, le=1)


class SieveBetaSchedule(BetaSchedule):
    """Schedule of β that starts in the first epoch, since the retriever is already trained."""

    start_epoch: int = Field(default=0, ge=0)


class SieveConfig(Config):
    """Training of the passage sieve's temporary model, from a copy of the judging retriever."""

    beta: SieveBetaSchedule = SieveBetaSchedule(final=0.5)
    """β of the robust contrastive loss."""

    num_epochs: int = Field(default=1, ge=1)
    """Epochs of the temporary model."""

    batch_size: int = Field(default=16, ge=2)
    """Queries of a step; the candidates of a query are its own negatives only."""

    num_candidates: int | None = Field(default=None, ge=1)
    """Negatives of each query for training, best ranks first; ``negatives.depth`` if null. All negatives are judged."""

    scale: float | None = Field(default=None, gt=0)
    """τ in training; that of the retriever if null. Verdicts do not depend on it."""

    optimizer: SieveOptimizerConfig = SieveOptimizerConfig()

    @model_validator(mode="after")
    def _beta_is_on(self) -> SieveConfig:
        if self.beta.start_epoch >= self.num_epochs:
            raise ValueError(
                f"beta.start_epoch is {self.beta.start_epoch} and num_epochs {self.num_epochs}, so β is never on: "
                "set start_epoch lower"
            )
        return self


class LanguageModelConfig(CrossEncoderTraining):
    """The untrained language model of the judges ``language_model`` and ``language_model_negatives``."""

    section: ClassVar[str] = "language_model"
    predicts: ClassVar[Literal["probability"]] = "probability"

    num_epochs: Literal[0] = 0
    num_hard_negatives: Literal[0] = 0
    num_random_negatives: Literal[0] = 0


class ClassifierConfig(CrossEncoderTraining):
    """Training of the cross-encoder of the judges ``classifier`` and ``pair_classifier``."""

    section: ClassVar[str] = "judge.classifier"
    predicts: ClassVar[Literal["probability"]] = "probability"

    num_hard_negatives: int = Field(default=1, ge=0)
    """h, the number of a query's candidates drawn as negatives in each epoch."""

    num_random_negatives: int = Field(default=4, ge=0)
    """r, the number of random passages drawn as further negatives. With a share ε of mismatched pairs, a passage that
    shares words with its query is right with probability (1 − ε) / (1 − ε + h), another passage with ε / (ε + r). With
    r = h and ε = 0.5 nothing can be learnt; so r is four times h."""

    pairs_kept_by: Annotated[str, Resolved] = ""
    """Judge whose kept pairs train the cross-encoder, which then judges all pairs; the whole split if empty."""

    num_folds: Annotated[int, Resolved] = Field(default=1, ge=1)
    """Number of folds of the training split. 1: a single cross-encoder, trained on the queries that it judges, as in
    RocketQA. More: a cross-encoder trained on the other folds judges each fold, so that it has not memorised its
    labels. Each fold costs a training."""

    @model_validator(mode="after")
    def _gives_probabilities(self) -> ClassifierConfig:
        if self.loss.name != "bce":
            raise ValueError(
                f"judges compare probabilities of relevance, which the loss {self.loss.name!r} does not train: set the "
                "loss to bce"
            )
        return self
