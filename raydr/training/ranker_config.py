"""Settings of the run's ranker, and the training of a cross-encoder as its workers get it."""

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
    """Reranking of dev queries after each epoch: the first passages that the candidates' miner finds for them (BM25,
    where candidates came with the data)."""

    max_queries: int = Field(default=200, ge=1)
    """The dev queries used, at most, chosen by (seed, query_id)."""

    depth: int = Field(default=20, ge=1)
    """Passages of each query that are ordered, at most."""

    measure: MeasureName = "RR@10"
    """The measure that chooses the epoch, in ir-measures' notation; higher is better."""


class RankerConfig(CrossEncoderTraining):
    """The run's ranker: a cross-encoder over the candidates that ``negatives`` mines and the judges leave."""

    section: ClassVar[str] = "ranker"
    predicts: ClassVar[Literal["log_odds"]] = "log_odds"

    loss: Annotated[Loss, Pluggable()] = NCE()
    """What is minimised over a query's list: ``nce``, a softmax over the positive and its negatives; ``bce``, each
    passage by itself; ``rcl``."""

    num_hard_negatives: int = Field(default=15, ge=0)
    """Candidates of a query drawn as negatives in each epoch: all of them where ``negatives.depth`` is no larger."""

    num_random_negatives: int = Field(default=0, ge=0)
    """Random passages of the corpus drawn as further negatives."""

    dev: RankerDevConfig | None = RankerDevConfig()
    """The epoch that is best on dev becomes the model; if null nothing is measured, and the last epoch does."""

    @property
    def chooses_epoch(self) -> bool:
        """Whether dev queries say which epoch becomes the model."""
        return self.num_epochs > 0 and self.dev is not None

    @model_validator(mode="after")
    def _loss_begins(self) -> RankerConfig:
        if self.num_epochs and self.loss.num_warmup_epochs >= self.num_epochs:
            raise ValueError(
                f"the loss {self.loss.name!r} is plain NCE in its first {self.loss.num_warmup_epochs} epochs and "
                f"num_epochs is {self.num_epochs}: it would never begin; train longer, or let it begin earlier"
            )
        return self


@dataclass(frozen=True)
class CrossEncoderJob:
    """What every worker of one training knows; picklable."""

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
