"""From tables to a trainer: the part of training that is the same under Ray Train, torchrun or in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import torch
from torch import nn

from raydr.data.corpus import Corpus
from raydr.data.examples import load_examples
from raydr.data.partitions import Scope
from raydr.data.schema import SplitTables
from raydr.data.training_signals import GuideVectors, join_ranker_scores
from raydr.errors import ConfigError
from raydr.models.backbone import choose_attention, recompute_activations
from raydr.models.config import Side
from raydr.models.dual_encoder import DualEncoder
from raydr.models.learning import choose_what_learns
from raydr.models.tokens import TextTokenizer
from raydr.noise.margins import Margins
from raydr.training.batches import GROUP_OVERHEAD, BatchMaker
from raydr.training.collectives import num_ranks, rank
from raydr.training.config import TrainConfig
from raydr.training.coteaching import CoTeachingTrainer
from raydr.training.cross_fitted import CrossFittedDetector
from raydr.training.detection import PairDetector, trusted_rows
from raydr.training.dev import DevRetrieval
from raydr.training.trainer import Listener, Setup, Trainer


@dataclass(frozen=True)
class TrainingInputs:
    """The data of a training.

    Args:
        corpus: the passages.
        train: the training pairs.
        dev: what is measured on; None if nothing is.
        ranker_scores: (query_id, passage_id, score) of what is learnt; None if no ranker teaches.
        scope: the partitions that a query's random negatives are drawn from.
        margins: cross-fitted ones of the pairs, where the detection reads them.
        guide: the vectors of a guide, where ``train.guide`` is set.
        trusted: pairs that people have called right; None if they have looked at none.
    """

    corpus: Corpus
    train: SplitTables
    dev: SplitTables | None
    ranker_scores: pa.Table | None = None
    scope: Scope = "own"
    margins: Margins | None = None
    guide: GuideVectors | None = None
    trusted: pa.Table | None = None


def build_setup(
    config: TrainConfig,
    seed: int,
    model: DualEncoder,
    tokenizers: dict[Side, TextTokenizer],
    inputs: TrainingInputs,
    dtype: torch.dtype,
    listener: Listener,
    wrap: Callable[[nn.Module], nn.Module] | None = None,
) -> Setup:
    """Make the setup of a :class:`~raydr.training.trainer.Trainer`.

    Args:
        config: settings of training.
        seed: the run's seed.
        model: the student, on its device.
        tokenizers: one a side.
        inputs: corpus and tables.
        dtype: arithmetic of the forward pass.
        listener: what happens outside.
        wrap: makes a module data-parallel, for example ``DistributedDataParallel``; None for a single process.
    """
    corpus = inputs.corpus
    choose_attention(model, next(model.parameters()).device.type, dtype)
    choose_what_learns(model, config.optimizer, seed, "train.optimizer")
    if config.recompute_activations:
        recompute_activations(model)
    examples = load_examples(*inputs.train, corpus, inputs.scope)
    overhead = GROUP_OVERHEAD[next(model.parameters()).device.type]
    ranker = None
    if inputs.ranker_scores is not None:
        ranker = join_ranker_scores(examples, inputs.ranker_scores, corpus)
    if config.guide is not None and inputs.guide is None:
        raise ConfigError("train.guide is set, and no vectors of a guide were given")
    guide = None if inputs.guide is None else inputs.guide.beside(examples.query_ids)
    batches = BatchMaker(examples, corpus, tokenizers, config, seed, rank(), num_ranks(), overhead, ranker, guide)
    dev = None
    if inputs.dev is not None:
        dev = DevRetrieval(inputs.dev, corpus, tokenizers, config.dev, seed)
    detector: PairDetector | CrossFittedDetector | None = None
    detection = config.detection
    if detection is not None and detection.margins == "cross_fitted":
        if inputs.margins is None:
            raise ConfigError(
                f"the loss {config.loss.name} reads flags of cross-fitted margins, and none were given: give margins, "
                "or set train.pair_detection.margins to model"
            )
        detector = CrossFittedDetector(examples, corpus, inputs.margins, detection, config.positive, seed)
    elif detection is not None:
        detector = PairDetector(examples, corpus, tokenizers, detection, config, seed)
    trusted = frozenset() if inputs.trusted is None else trusted_rows(inputs.trusted, corpus)
    return Setup(config, model, wrap or _alone, batches, dev, detector, dtype, seed, listener, trusted)


def build_trainer(setup: Setup) -> Trainer:
    """Make the trainer, of two networks where ``train.coteaching`` is set."""
    coteaching = setup.config.coteaching
    return Trainer(setup) if coteaching is None else CoTeachingTrainer(setup, coteaching)


def _alone(model: nn.Module) -> nn.Module:
    return model
