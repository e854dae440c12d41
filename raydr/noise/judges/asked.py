"""Models that judges read: a judge declares its model, its caller provides it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from raydr.models.config import ModelConfig
from raydr.noise.judge_models import ClassifierConfig, LanguageModelConfig, SieveConfig


class AskedModels(Protocol):
    """Settings of the section ``judge`` that describe models."""

    @property
    def scores(self) -> Literal["model", "miner"]:
        """Source of the scores of candidates: the retriever, or the miner."""

    @property
    def guide(self) -> ModelConfig: ...

    @property
    def sieve(self) -> SieveConfig: ...

    @property
    def classifier(self) -> ClassifierConfig: ...


@dataclass(frozen=True)
class Retriever:
    """The run's judging retriever: ``judge.model``, or that of the last round."""


@dataclass(frozen=True)
class Embedder:
    """Another, untrained embedding model.

    Args:
        model: its settings.
        name: its name.
    """

    model: ModelConfig
    name: str = "guide"


@dataclass(frozen=True)
class CrossEncoder:
    """A cross-encoder, trained on the pairs and their candidates.

    Args:
        settings: its training.
    """

    settings: ClassifierConfig


@dataclass(frozen=True)
class Reader:
    """An untrained language model, used as a cross-encoder.

    Args:
        settings: the model and its prompt.
    """

    settings: LanguageModelConfig


@dataclass(frozen=True)
class Copy:
    """A copy of the retriever, trained further on the judged candidates, then deleted.

    Args:
        name: its name.
        num_candidates: negatives of each query used in training; all mined negatives if None.
        model: changes to the section ``model``.
        train: changes to the section ``train``.
    """

    name: str
    num_candidates: int | None
    model: dict[str, Any]
    train: dict[str, Any]


@dataclass(frozen=True)
class CrossFitted:
    """The short trainings of the section ``cross_fit``, which have not seen the pairs; no further model."""


@dataclass(frozen=True)
class Server:
    """A language model behind a server, which reads doubtful verdicts of an earlier judge."""


#: None: the judge reads the miner's scores.
Asked = Retriever | Embedder | CrossEncoder | Reader | Copy | CrossFitted | Server | None
