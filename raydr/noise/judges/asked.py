"""Which model a judge asks: the judge declares it, and whoever runs the judge makes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from raydr.models.config import ModelConfig
from raydr.noise.judge_models import ClassifierConfig, LanguageModelConfig, SieveConfig


class AskedModels(Protocol):
    """The section ``judge`` as far as it describes models."""

    @property
    def scores(self) -> Literal["model", "miner"]:
        """Whose scores judges of negatives read: the retriever's, or those that the candidates were mined with."""

    @property
    def guide(self) -> ModelConfig: ...

    @property
    def sieve(self) -> SieveConfig: ...

    @property
    def classifier(self) -> ClassifierConfig: ...


@dataclass(frozen=True)
class Retriever:
    """The retriever that the run judges with: ``judge.model``, or the last round's."""


@dataclass(frozen=True)
class Embedder:
    """Another embedding model as it is.

    Args:
        model: its checkpoint.
        name: what it is called.
    """

    model: ModelConfig
    name: str = "guide"


@dataclass(frozen=True)
class CrossEncoder:
    """A cross-encoder, trained on the pairs and their candidates.

    Args:
        settings: how.
    """

    settings: ClassifierConfig


@dataclass(frozen=True)
class Reader:
    """A language model as it comes, asked as a cross-encoder.

    Args:
        settings: which, and what it is asked.
    """

    settings: LanguageModelConfig


@dataclass(frozen=True)
class Copy:
    """A copy of the retriever that is trained further on the candidates that are judged, and thrown away.

    Args:
        name: what it is called.
        num_candidates: negatives of a query that it is trained on; all that were mined if None.
        model: changes to the section ``model``.
        train: changes to the section ``train``.
    """

    name: str
    num_candidates: int | None
    model: dict[str, Any]
    train: dict[str, Any]


@dataclass(frozen=True)
class CrossFitted:
    """No model of its own: what the section ``cross_fit`` describes, short trainings that have not seen the pairs."""


@dataclass(frozen=True)
class Server:
    """A language model behind a server, which reads what an earlier judge of the list was unsure of."""


#: None: the judge reads the scores that the candidates were mined with.
Asked = Retriever | Embedder | CrossEncoder | Reader | Copy | CrossFitted | Server | None
