"""The settings of a retriever's training, checks of its inputs, and advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from raydr.component import Config, explain
from raydr.data.dataset import Dataset
from raydr.data.parts import Scope
from raydr.errors import ArtifactError, ConfigError, DataError
from raydr.models.config import SIDES, ModelConfig
from raydr.negatives.samplers.base import Sampler
from raydr.negatives.samplers.mixed import Mixed
from raydr.negatives.samplers.simans import SimANS
from raydr.negatives.samplers.softmax import Softmax
from raydr.store.artifact import Artifact
from raydr.training.checkpoint import OPTIMIZER
from raydr.training.config import TrainConfig

T = TypeVar("T")


@dataclass(frozen=True)
class OptionalInputs(Generic[T]):
    """Optional inputs of a training, besides its pairs and the corpus: declared nodes, or finished artefacts.

    Args:
        negatives: mined candidates; the candidates of the data if None.
        start: model that training starts from; ``model.checkpoint`` if None.
        ranker_scores: scores of pairs and candidates by a ranker, for a loss that reads them.
        margins: cross-fitted margins of the pairs, for a detection that reads them.
        dev_verdicts: verdicts on the pairs of the dev split; queries with a flagged pair are not measured.
        guide_queries: vectors of the training queries by the guide, for ``train.guide``.
        guide_passages: vectors of the corpus by the guide, for ``train.guide``.
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
    """The settings of a training, equal for every worker."""

    model: ModelConfig
    train: TrainConfig
    """Settings of training, with a resolved dtype."""

    train_split: str
    """The split of the training pairs."""

    dev_split: str
    """The split that chooses the epoch; no epoch is measured if the data set lacks the split."""

    seed: int
    scope: Scope = "own"
    """The partitions that a query's random negatives are drawn from."""

    with_optimizer: bool = False
    """Start with the optimiser's moments that were saved with the starting model."""

    keep_optimizer: bool = False
    """Save the optimiser's moments with the model, for a training that starts from it."""

    def changed(self, model: Mapping[str, Any], train: Mapping[str, Any], where: str) -> Training:
        """Return this training with other settings, and without measurement on the dev split.

        Retrieval on the dev split may take longer than a short training.

        Args:
            model: changes to the settings of the model.
            train: changes to the settings of training.
            where: section of the changes, for messages.

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
    """Check the inputs of a training, before problems show after the first epoch, or never.

    Args:
        training: settings of the training.
        data: training pairs.
        optional: other inputs.

    Returns:
        Warnings.

    Raises:
        DataError: the dev split has no judgments, or the candidates are those of another split.
        ArtifactError: the starting model has no state of its optimiser.
    """
    warnings = _check_dev(training.dev_split, data)
    mined, start, split = optional.negatives, optional.start, training.train_split
    if mined is not None and training.train.num_hard_negatives and not mined.parts(f"negatives/{split}"):
        others = sorted({name.split("/")[1] for name in mined.parts("negatives")})
        raise DataError(
            f"the candidates at {mined.folder} are of split {', '.join(others) or 'none'}, the training is on "
            f"{split!r}: mine those of {split!r}"
        )
    candidates = data.artifact if mined is None else mined
    if training.train.num_hard_negatives and not candidates.rows(f"negatives/{split}"):
        warnings.append(
            f"no query of {split!r} has a candidate, and hard negatives (train.num_hard_negatives "
            f"{training.train.num_hard_negatives}) are random passages: set negatives.miner to bm25 or another miner"
        )
    if training.with_optimizer and (start is None or OPTIMIZER not in start.parts()):
        raise ArtifactError(
            f"the model at {start.folder if start else training.model.checkpoint} was saved without its optimiser's "
            "state: train it again and save the state, or start with a new optimiser"
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
            f"split {split!r} of the data set at {data.artifact.folder} has no judgments, and no epoch can be "
            "measured on it: set data.dev_split to a split with judgments, or to '' to train without"
        )
    return []


#: Maximum of a usual scale for sums of cosines.
_SUM_SCALE = 4
#: Miners whose scores are not those of a dense model.
_SPARSE = ("bm25", "source")


def training_advice(training: Training, miner: str | None = None) -> list[str]:
    """Return the sentences to show before a training begins.

    Args:
        training: settings of the training.
        miner: miner of the candidates; None for the candidates of the data.

    >>> from raydr.models.config import ModelConfig
    >>> from raydr.training.config import TrainConfig
    >>> train = TrainConfig.model_validate({"pair_detection": {}})
    >>> len(training_advice(Training(model=ModelConfig(), train=train, train_split="train", dev_split="dev", seed=0)))
    1
    """
    train, model = training.train, training.model
    advice = train.loss.check(model.similarity)
    summed = [side for side in SIDES if model.vectors(side).kind == "tokens"]
    if len(summed) == 2 and model.similarity == "cosine" and model.scale > _SUM_SCALE:
        advice.append(
            f"the score function {model.score.name} sums a cosine for each token, and model.scale is {model.scale:g}: "
            "the softmax gives nearly all weight to a single candidate; 1 is usual"
        )
    if train.detection is not None and train.coteaching is None and not train.loss.reads_pair_flags:
        advice.append(
            f"train.pair_detection flags pairs before each epoch, and the loss {train.loss.name} does not read "
            "flags: take npc, or leave the detection out"
        )
    if train.detection is None and train.loss.reads_pair_flags:
        advice.append(
            f"the loss {train.loss.name} leaves out flagged pairs, and without train.pair_detection no pair is "
            "flagged: set it, unless you want this ablation"
        )
    if train.loss.num_warmup_epochs >= train.num_epochs:
        advice.append(
            f"the loss {train.loss.name} begins in epoch {train.loss.num_warmup_epochs + 1}, after plain NCE, and "
            f"train.num_epochs is {train.num_epochs}: it never begins; train longer, or begin earlier"
        )
    if train.coteaching is not None and (ramp := train.coteaching.ramp_epochs) >= train.num_epochs:
        advice.append(
            f"co-teaching leaves out {(train.num_epochs - 1) / ramp:.0%} of the noise rate in epoch "
            f"{train.num_epochs}, the last, since train.coteaching.ramp_epochs is {ramp}: train longer, or set "
            "it lower"
        )
    hard = train.sampler.hard if isinstance(train.sampler, Mixed) else train.sampler
    dense = miner is not None and miner not in _SPARSE
    if dense and model.similarity == "cosine" and model.scale > 1 and _nearly_uniform(hard):
        advice.append(
            f"the sampler {hard.name} reads the run's scores, which are cosines so close together that it draws "
            f"nearly uniformly; for the model's own distribution set {_sharper(hard, model.scale)}"
        )
    return advice


def _nearly_uniform(sampler: Sampler) -> bool:
    if isinstance(sampler, Softmax):
        return sampler.smoothing == 1
    return isinstance(sampler, SimANS) and sampler.a <= 1


def _sharper(sampler: Sampler, scale: float) -> str:
    if isinstance(sampler, SimANS):
        return f"its a to {sampler.a:g} · model.scale², {sampler.a * scale**2:g}"
    return f"its smoothing to model.scale, {scale:g}"
