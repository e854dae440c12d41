"""Settings of the run's ranker, and the inputs of a cross-encoder's training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from raydr.component import Config, Pluggable
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.parts import Scope
from raydr.evaluation.metrics import MeasureName
from raydr.losses.base import Loss
from raydr.losses.nce import NCE
from raydr.models.training_config import CrossEncoderTraining
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder
from raydr.training.reports import Watcher


class RankerDevConfig(Config):
    """Reranking, after each epoch, of the first passages that the candidates' miner finds for dev queries (BM25 if the
    candidates are those of the data)."""

    max_queries: int = Field(default=200, ge=1)
    """Maximum of dev queries, chosen by (seed, query_id)."""

    depth: int = Field(default=20, ge=1)
    """Maximum of passages to rerank per query."""

    measure: MeasureName = "RR@10"
    """The measure that chooses the epoch, in ir-measures' notation; higher is better."""


class RankerConfig(CrossEncoderTraining):
    """The run's ranker: a cross-encoder, trained with the candidates of ``negatives`` that the judges keep."""

    section: ClassVar[str] = "ranker"
    predicts: ClassVar[Literal["log_odds"]] = "log_odds"

    loss: Annotated[Loss, Pluggable()] = NCE()
    """The loss over a query's list: ``nce``, a softmax over the positive and its negatives; ``bce``, each passage by
    itself; ``rcl``."""

    num_hard_negatives: int = Field(default=15, ge=0)
    """Candidates of a query drawn as negatives in each epoch; all candidates if ``negatives.depth`` is no larger."""

    num_random_negatives: int = Field(default=0, ge=0)
    """Random passages of the corpus drawn as further negatives in each epoch."""

    dev: RankerDevConfig | None = RankerDevConfig()
    """The measurement of epochs, the best of which becomes the model; if null, the last epoch becomes the model."""

    @property
    def chooses_epoch(self) -> bool:
        """Whether the best epoch on dev queries becomes the model."""
        return self.num_epochs > 0 and self.dev is not None

    @model_validator(mode="after")
    def _loss_begins(self) -> RankerConfig:
        if self.num_epochs and self.loss.num_warmup_epochs >= self.num_epochs:
            raise ValueError(
                f"the loss {self.loss.name!r} is plain NCE in its first {self.loss.num_warmup_epochs} epochs and "
                f"num_epochs is {self.num_epochs}: it would never begin; train longer, or shorten its warm-up"
            )
        return self


@dataclass(frozen=True)
class CrossEncoderJob:
    """Inputs and settings of the training of a cross-encoder, for its workers; picklable."""

    settings: CrossEncoderTraining
    split: str
    seed: int
    scope: Scope
    data: Dataset
    corpus: Corpus
    negatives: Artifact | None
    start: Artifact | None
    dev: str
    dev_run: Artifact | None
    output: Folder
    watcher: Watcher
