"""Nodes of trainings with the inputs of loss and detection, and configs of judging models."""

from __future__ import annotations

from collections.abc import Iterable

from raydr.artefacts import cross_fitting
from raydr.artefacts.context import Context
from raydr.artefacts.dataset import declare_dataset
from raydr.artefacts.declaration import Node
from raydr.artefacts.model import trained
from raydr.artefacts.negatives import SOURCE
from raydr.artefacts.places import BM25
from raydr.artefacts.ranker_scores import ranker_scores
from raydr.artefacts.verdicts import verdicts
from raydr.config.judge import PAIRS_JUDGE
from raydr.config.run import RunConfig
from raydr.losses.nce import NCE
from raydr.pipeline.judging import Judged
from raydr.training.config import TrainConfig
from raydr.training.reports import Watcher
from raydr.training.training import OptionalInputs, Training


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
        data: candidates and pairs; the config's own pairs if it has none.
        ranker: model whose scores the loss reads; None if it reads none.
        start: model that training starts from; None: the checkpoint.
        watcher: receives progress updates; None: the console.
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
    """Declare the verdicts on the pairs of a split that is held out of the training pairs, and equally noisy.

    The models of the training split's folds, which have not seen its queries, measure them.

    Args:
        context: the config.
        split: the split.
        trainings: settings of the models that the split evaluates.

    Returns:
        None if the split came with the data, or no training reads margins of such models.
    """
    if split not in context.config.data.hold_out or not any(train.reads_margins for train in trainings):
        return None
    judge = context.config.judge.judge(PAIRS_JUDGE).model_copy(update={"margins": "cross_fitted"})
    return verdicts(context, judge, split, None, {cross_fitting.MARGINS: cross_fitting.margins(context, split)})


def without_judges(config: RunConfig, name: str, miner: str) -> RunConfig:
    """Return the config of a model that judges or mines: trained without judges and without a ranker.

    Args:
        config: config of the run.
        name: name of the model, ``trained`` or a variant.
        miner: miner of the run; candidates of a model are replaced by BM25's.

    Returns:
        The config itself if nothing changes.
    """
    update: dict[str, object] = {}
    train = config.variant(name).train
    if train.loss.reads_ranker_scores:
        # The ranker learns from what this model mines.
        update |= {"train": train.model_copy(update={"loss": NCE()}), "variants": {}}
    if config.judge.judges:
        update["judge"] = config.judge.model_copy(update={"judges": []})
    if config.negatives is not None and miner not in (SOURCE, BM25):
        update["negatives"] = config.negatives.model_copy(update={"miner": BM25})
    return config.model_copy(update=update) if update else config
