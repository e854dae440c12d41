"""Models whose scores judges read: a judge declares its model, and the caller provides the scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from raydr.models.config import ModelConfig
from raydr.noise.judge_models import ClassifierConfig, LanguageModelConfig, SieveConfig


class AskedModels(Protocol):
    """Settings of models in the section ``judge``."""

    @property
    def scores(self) -> Literal["model", "miner"]:
        """Source of the candidates' scores: the retriever, or the miner."""

    @property
    def guide(self) -> ModelConfig: ...

    @property
    def sieve(self) -> SieveConfig: ...

    @property
    def classifier(self) -> ClassifierConfig: ...


@dataclass(frozen=True)
class Retriever:
    """The judging retriever of the run: ``judge.model``, or the model of the last round."""


@dataclass(frozen=True)
class Embedder:
    """Another, untrained embedding model.

    Args:
        model: settings of the model.
        name: name of the model.
    """

    model: ModelConfig
    name: str = "guide"


@dataclass(frozen=True)
class CrossEncoder:
    """A cross-encoder, trained on the pairs and their candidates.

    Args:
        settings: settings of the model and its training.
    """

    settings: ClassifierConfig


@dataclass(frozen=True)
class Reader:
    """An untrained language model, used as a cross-encoder.

    Args:
        settings: settings of the model and its prompt.
    """

    settings: LanguageModelConfig


@dataclass(frozen=True)
class Copy:
    """A temporary copy of the retriever, trained further on the judged candidates.

    Args:
        name: name of the copy.
        num_candidates: number of negatives per query for training; all mined negatives if None.
        model: changes to the section ``model``.
        train: changes to the section ``train``.
    """

    name: str
    num_candidates: int | None
    model: dict[str, Any]
    train: dict[str, Any]


@dataclass(frozen=True)
class CrossFitted:
    """The models of the section ``cross_fit``, each for pairs that it was not trained on."""


@dataclass(frozen=True)
class Server:
    """A language model behind a server, for the doubtful verdicts of an earlier judge."""


#: Model of a judge; None for the miner's scores.
Asked = Retriever | Embedder | CrossEncoder | Reader | Copy | CrossFitted | Server | None
