"""Nodes of judges: their models and verdicts, the data that remain after judging, and trainings on these data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from raydr.artefacts import Context, Node, cross_fitting
from raydr.artefacts.cross_fitting import MODEL
from raydr.artefacts.dataset import declare_dataset
from raydr.artefacts.judged import filtered, judged
from raydr.artefacts.language_model import asked_verdicts
from raydr.artefacts.model import trained, untrained
from raydr.artefacts.negatives import SOURCE
from raydr.artefacts.places import BM25
from raydr.artefacts.ranker import cross_encoder
from raydr.artefacts.ranker_scores import ranker_scores
from raydr.artefacts.verdicts import verdicts
from raydr.config.run import RunConfig
from raydr.config.sections import PAIRS_JUDGE, JudgeConfig
from raydr.errors import ConfigError
from raydr.losses.nce import NCE
from raydr.noise.judge_models import ClassifierConfig
from raydr.noise.judges.asked import Copy, CrossEncoder, CrossFitted, Embedder, Reader, Retriever, Server
from raydr.noise.judges.base import Judge, SecondJudge
from raydr.training.config import TrainConfig
from raydr.training.reports import Watcher
from raydr.training.training import OptionalInputs, Training

#: Kinds of judged labels.
SUBJECTS = ("negatives", "pairs")


@dataclass(frozen=True)
class Judged:
    """The training data that remain after judging.

    Args:
        negatives: candidates with the judges' actions; unchanged without judges of negatives; None if nothing is mined.
        pairs: data set without dropped pairs; None without judges of pairs.
    """

    negatives: Node | None
    pairs: Node | None


def active_judges(settings: JudgeConfig, judges: Sequence[Judge], on_negatives: bool) -> list[Judge]:
    """Return the judges whose verdicts are needed, each name once.

    Args:
        settings: the settings of all judges.
        judges: the configured judges; earlier judges of their chains are added.
        on_negatives: whether candidates are judged; implied judges are then added.
    """
    chains = [link for judge in judges for link in settings.chain(judge)]
    active = [judge for link in chains for judge in (link, *(link.companions() if on_negatives else ()))]
    return list({judge.name: judge for judge in active}.values())


def training_judges(config: RunConfig, draws_negatives: bool) -> list[Judge]:
    """Return the judges whose verdicts choose the data of a training.

    Args:
        config: config of the run.
        draws_negatives: whether the training draws hard negatives.

    Raises:
        ConfigError: judges of candidates are configured, and the training draws the candidates of the data, unjudged.
    """
    mines = draws_negatives and config.negatives is not None
    idle = [judge.name for judge in config.judge.judges if judge.subject == "negatives"]
    if draws_negatives and not mines and idle:
        raise ConfigError(
            f"judge.judges: {idle[0]} judges candidates, and without the section negatives a training draws those of "
            "the data unjudged: set negatives.miner to source, or leave the judge out"
        )
    judges = active_judges(config.judge, config.judge.judges, mines)
    return [judge for judge in judges if mines or judge.subject == "pairs"]


def judge_all(
    context: Context, judges: Sequence[Judge], verdicts: Sequence[Node], negatives: Node | None, split: str
) -> Judged:
    """Apply the verdicts of judges to candidates and pairs."""
    judge_verdicts = list(zip(judges, verdicts, strict=True))
    on_negatives, on_pairs = (
        {judge.name: node for judge, node in judge_verdicts if judge.subject == subject} for subject in SUBJECTS
    )
    if on_negatives and negatives is not None:
        negatives = judged(context, negatives, on_negatives, split)
    return Judged(negatives, filtered(context, on_pairs, split) if on_pairs else None)


@dataclass
class Judging(ABC):
    """A declaration of verdicts on the candidates, or the pairs, of a split.

    A run and a refresh round define the candidates, the judges' retriever, and the training data of their
    cross-encoder.

    Args:
        context: config.
        split: the judged split.
    """

    context: Context
    split: str

    @abstractmethod
    def candidates(self, judge: Judge) -> Node:
        """Return the candidates for a judge of candidates."""

    @abstractmethod
    def retriever(self) -> Node:
        """Return the retriever whose scores judges read."""

    @abstractmethod
    def training_data(self, judge: Judge) -> Judged:
        """Return the candidates and pairs of the training split on which a judge's cross-encoder is trained."""

    def verdicts(self, judge: Judge) -> Node:
        """Return the node of a judge's verdicts.

        Raises:
            ConfigError: the judge's model cannot be made for this split.
        """
        settings, earlier = self.context.config.judge, None
        if isinstance(judge, SecondJudge) and judge.after:
            earlier = self.verdicts(settings.judge(judge.after))
        if isinstance(judge.asks(settings), Server):
            assert earlier is not None
            return asked_verdicts(self.context, judge, self.split, earlier)
        negatives = self.candidates(judge) if judge.subject == "negatives" else None
        return verdicts(self.context, judge, self.split, negatives, self._reads(judge, negatives), earlier)

    def _reads(self, judge: Judge, negatives: Node | None) -> dict[str, Any]:
        """Return the inputs of a judge besides data and candidates, by role.

        They are a model, models with their folds, or cross-fitted margins. A judge of the miner's scores has none.
        """
        context, split = self.context, self.split
        asked = judge.asks(context.config.judge)
        match asked:
            case None | Server():
                return {}
            case Retriever():
                return {MODEL: self.retriever()}
            case CrossFitted():
                return {cross_fitting.MARGINS: cross_fitting.margins(context, split)}
            case Embedder():
                return {MODEL: untrained(context, asked.model, asked.name)}
            case CrossEncoder():
                return self._cross_encoders(judge, asked.settings)
            case Reader():
                return {MODEL: cross_encoder(context, asked.settings, None)}
            case Copy():
                if split != context.config.data.train_split:
                    raise ConfigError(
                        f"judge {judge.name} judges only the training split of its model, "
                        f"{context.config.data.train_split!r}; got {split!r}"
                    )
                return {MODEL: _copy(context, judge, asked, negatives, self.retriever())}

    def _cross_encoders(self, judge: Judge, settings: ClassifierConfig) -> dict[str, Any]:
        context, training_data = self.context, Judged(None, None)
        if settings.num_epochs:
            training_data = self.training_data(judge)
        if settings.num_epochs and settings.num_hard_negatives and training_data.negatives is None:
            raise ConfigError(
                f"judge.classifier.num_hard_negatives is {settings.num_hard_negatives}, but the run mines no "
                "candidates: set it to 0, or set a section negatives and train.num_hard_negatives"
            )
        # Without folds: an untrained model, or a model of another split, has seen none of the queries.
        if settings.num_folds > 1 and settings.num_epochs and self.split == context.config.data.train_split:
            return cross_fitting.cross_encoders(context, settings, training_data.negatives, training_data.pairs)
        return {MODEL: cross_encoder(context, settings, training_data.negatives, training_data.pairs)}


class DeclaresModels(Protocol):
    """The declarations of a run that its judges use."""

    def named(self, name: str, node: Node) -> Node:
        """Name a node."""

    def candidates(self, split: str, miner: str = "") -> Node:
        """Declare the candidates of a split."""

    def base_model(self, name: str) -> Node:
        """Declare a model for judging or mining."""


@dataclass
class RunJudging(Judging):
    """A declaration of a run's verdicts.

    Args:
        recipe: recipe of the run.
        miner: miner of the candidates.
        model: name of the judges' retriever.
        label: suffix of the names of verdicts.
    """

    recipe: DeclaresModels
    miner: str
    model: str
    label: str

    def verdicts(self, judge: Judge) -> Node:
        name = f"{judge.name}-{self.miner}" if judge.subject == "negatives" else judge.name
        label = f"-{self.label}" if self.label else ""
        return self.recipe.named(f"verdicts/{name}-{self.split}{label}", super().verdicts(judge))

    def candidates(self, judge: Judge) -> Node:
        return self.recipe.candidates(self.split, self.miner)

    def retriever(self) -> Node:
        return self.recipe.base_model(self.model)

    def training_data(self, judge: Judge) -> Judged:
        config = self.context.config
        training = replace(self, split=config.data.train_split)
        mines = judge.subject == "negatives" or config.negatives is not None
        return classifier_data(training, training.candidates(judge) if mines else None)


def classifier_data(judging: Judging, candidates: Node | None) -> Judged:
    """Return the candidates and pairs on which the judges' cross-encoder is trained.

    Args:
        judging: judging of the training split.
        candidates: candidates of the training split; None if nothing is mined.
    """
    context, settings = judging.context, judging.context.config.judge
    if not settings.classifier.pairs_kept_by:
        return Judged(candidates, None)
    chain = settings.chain(settings.judge(settings.classifier.pairs_kept_by))
    kept = {judge.name: judging.verdicts(judge) for judge in chain}
    return Judged(candidates, filtered(context, kept, judging.split))


def _copy(context: Context, judge: Judge, asked: Copy, negatives: Node | None, retriever: Node) -> Node:
    mined = context.config.negatives
    num_candidates = asked.num_candidates or (mined.depth if mined is not None else None)
    if num_candidates is None:
        raise ConfigError(
            f"set judge.{judge.name}.num_candidates: the config has no section negatives, whose depth is the default"
        )
    train = {**asked.train, "num_hard_negatives": num_candidates}
    changed = context.training().changed(asked.model, train, f"judge.{judge.name}")
    measured = cross_fitting.margins_of(context, changed)
    return trained(
        context, asked.name, changed, declare_dataset(context), OptionalInputs(negatives, retriever, margins=measured)
    )


def declare_training(
    context: Context,
    name: str,
    settings: Training,
    data: Judged,
    ranker: Node | None,
    start: Node | None = None,
    watcher: Watcher | None = None,
) -> Node:
    """Declare a training on candidates and pairs.

    Args:
        context: config, variant or round.
        name: name of the model; part of the label.
        settings: settings of the training.
        data: candidates and pairs; without pairs, those of the config.
        ranker: model whose scores the loss reads; None if it reads none.
        start: model from which the training starts; by default the checkpoint.
        watcher: receives progress updates; by default the console.
    """
    pairs = data.pairs or declare_dataset(context)
    scores = ranker_scores(context, ranker, pairs, data.negatives) if ranker is not None else None
    suspects = None
    if settings.train.keep == "best":
        suspects = judge_held_out(context, settings.dev_split, [settings.train])
    optional = OptionalInputs(
        data.negatives, start, scores, cross_fitting.margins_of(context, settings), dev_verdicts=suspects
    )
    return trained(context, name, settings, pairs, optional, watcher=watcher)


def judge_held_out(context: Context, split: str, trainings: Iterable[TrainConfig]) -> Node | None:
    """Declare verdicts on the pairs of a split that is held out of the training pairs, and hence equally noisy.

    Their margins come from the models of the training split's folds, which have not seen the split's queries.

    Args:
        context: the config.
        split: the split.
        trainings: settings of the models that are evaluated on the split.

    Returns:
        None if the split came with the data, or if no training reads margins of such models.
    """
    if split not in context.config.data.hold_out or not any(train.reads_margins for train in trainings):
        return None
    judge = context.config.judge.judge(PAIRS_JUDGE).model_copy(update={"margins": "cross_fitted"})
    return verdicts(context, judge, split, None, {cross_fitting.MARGINS: cross_fitting.margins(context, split)})


def without_judges(config: RunConfig, name: str, miner: str) -> RunConfig:
    """Return the config of a model for judging or mining, which is trained without judges and without a ranker.

    Args:
        config: config of the run.
        name: ``trained`` or a variant.
        miner: miner of the run; BM25 replaces a model as the miner.

    Returns:
        The config itself if nothing changes.
    """
    update: dict[str, object] = {}
    train = config.variant(name).train
    if train.loss.reads_ranker_scores:
        # The ranker is trained on the candidates that this model mines.
        update |= {"train": train.model_copy(update={"loss": NCE()}), "variants": {}}
    if config.judge.judges:
        update["judge"] = config.judge.model_copy(update={"judges": []})
    if config.negatives is not None and miner not in (SOURCE, BM25):
        update["negatives"] = config.negatives.model_copy(update={"miner": BM25})
    return config.model_copy(update=update) if update else config
