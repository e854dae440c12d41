"""The settings of a retriever's training: all that it depends on besides its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from raydr.component import Config, explain
from raydr.data.dataset import Dataset
from raydr.data.partitions import Scope
from raydr.errors import ArtifactError, ConfigError, DataError
from raydr.models.config import ModelConfig
from raydr.store.artifact import Artifact
from raydr.training.checkpoint import OPTIMIZER
from raydr.training.config import TrainConfig

T = TypeVar("T")


@dataclass(frozen=True)
class OptionalInputs(Generic[T]):
    """Optional inputs of a training, besides its pairs and the corpus: declared nodes, or finished artefacts.

    Args:
        negatives: mined candidates; those that came with the data if None.
        start: the model that training starts from; ``model.checkpoint`` if None.
        ranker_scores: a ranker's scores of pairs and candidates, for a loss that learns from it.
        margins: cross-fitted margins of the pairs, for a detection that reads them.
        dev_verdicts: verdicts on the pairs of the dev split; queries with a flagged pair choose no epoch.
        guide_queries: the guide's vectors of the training queries, where ``train.guide`` is set.
        guide_passages: the guide's vectors of the corpus, likewise.
    """

    negatives: T | None = None
    start: T | None = None
    ranker_scores: T | None = None
    margins: T | None = None
    dev_verdicts: T | None = None
    guide_queries: T | None = None
    guide_passages: T | None = None

    def present(self) -> dict[str, T]:
        """Return the inputs that are not None, by role."""
        return {role: value for role, value in vars(self).items() if value is not None}


class Training(Config):
    """The settings of one training, the same for every worker."""

    model: ModelConfig
    train: TrainConfig
    """Settings of training, with a resolved dtype."""

    train_split: str
    """The split that is trained on."""

    dev_split: str
    """The split that chooses the epoch; nothing is measured if the data set lacks it."""

    seed: int
    scope: Scope = "own"
    """The partitions that a query's random negatives are drawn from."""

    with_optimizer: bool = False
    """Start with the optimiser's moments that were kept with the starting model."""

    keep_optimizer: bool = False
    """Keep the optimiser's moments with the model, for a training that starts from it."""

    def changed(self, model: Mapping[str, Any], train: Mapping[str, Any], where: str) -> Training:
        """Return this training with other settings, made for its last state.

        Nothing is measured on the way: retrieval on the dev split may cost more than a short training.

        Args:
            model: changes to the model's settings.
            train: changes to those of training.
            where: the section that they come from, for messages.

        Raises:
            ConfigError: the settings do not fit each other.
        """
        try:
            return Training(
                model=ModelConfig.model_validate({**dict(self.model), **model}),
                train=TrainConfig.model_validate({**dict(self.train), **train}).resolved(),
                train_split=self.train_split,
                dev_split="",
                seed=self.seed,
                scope=self.scope,
            )
        except ValidationError as error:
            raise ConfigError(explain(error, f"{where}, with the workers of train,")) from None


def check_inputs(training: Training, data: Dataset, optional: OptionalInputs[Artifact]) -> list[str]:
    """Check before a training what would come to light after its first epoch, or never.

    Args:
        training: its settings.
        data: the training pairs.
        optional: the other inputs.

    Returns:
        Warnings.

    Raises:
        DataError: the dev split has no judgments, or the candidates are of another split.
        ArtifactError: the start has no state of its optimiser.
    """
    warnings = _check_dev(training.dev_split, data)
    mined, start, split = optional.negatives, optional.start, training.train_split
    if mined is not None and training.train.num_hard_negatives and not mined.parts(f"negatives/{split}"):
        others = sorted({name.split("/")[1] for name in mined.parts("negatives")})
        raise DataError(
            f"the candidates at {mined.folder} are of split {', '.join(others) or 'none'}, the training is on "
            f"{split!r}: mine those of {split!r}"
        )
    if training.with_optimizer and (start is None or OPTIMIZER not in start.parts()):
        raise ArtifactError(
            f"the model at {start.folder if start else training.model.checkpoint} was saved without its optimiser's "
            "state: train it again and keep that, or start with a fresh optimiser"
        )
    return warnings


def _check_dev(split: str, data: Dataset) -> list[str]:
    if split and split not in data.splits:
        return [
            f"the data set at {data.artifact.folder} has no split {split!r} (it has {', '.join(data.splits)}): nothing "
            "is measured while training, and the last epoch is kept. Set data.dev_split to a split that it has, or to "
            "'' to confirm"
        ]
    if split in data.splits and not data.artifact.rows(f"qrels/{split}"):
        raise DataError(
            f"split {split!r} of the data set at {data.artifact.folder} has no judgments, so that no epoch can be "
            "measured on it: set data.dev_split to a split that has some, or to '' to train without"
        )
    return []
