"""Arms of an experiment: the same data and seed, trained in different ways, measured in the same way.

An arm is trained in one process, so that as many run at a time as there are CPUs (or GPUs): the model is the one that
Ray Train would give with any number of workers, since the batch is global.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from experiments.live_encoder import LiveEncoder
from experiments.redrawn import redraw_candidates
from raydr.config.run import RunConfig
from raydr.data.annotations import known_false_negatives
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.evaluation.metrics import parse_measures, score_queries
from raydr.models.config import Side
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.models.precision import resolve_dtype, torch_dtype
from raydr.models.tokens import TextTokenizer
from raydr.noise.detectors.anchored import AnchoredDetector
from raydr.noise.detectors.base import Detector
from raydr.noise.detectors.calibrated import CalibratedDetector
from raydr.noise.detectors.gaussian import GaussianDetector
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder
from raydr.training.checkpoint import Progress
from raydr.training.config import DevConfig, PairDetectionConfig
from raydr.training.detection import PairDetector, PairFlags, describe_detection
from raydr.training.dev import DevRetrieval
from raydr.training.run import TrainingInputs, build_setup
from raydr.training.trainer import Listener, Trainer

#: The detectors that every arm's model is examined with after each epoch, whatever it trains with.
DETECTORS: dict[str, Detector] = {
    "paper": GaussianDetector(),
    "calibrated": CalibratedDetector(min_separation=1),
    "anchored": AnchoredDetector(),
}


@dataclass(frozen=True)
class ArmData:
    """Where the artefacts of all arms are.

    Args:
        dataset: a ``dataset`` artefact.
        corpus: the corpus it was prepared with.
        negatives: mined candidates of the training split, if the arms use hard negatives.
    """

    dataset: Folder
    corpus: Folder
    negatives: Folder | None


@dataclass(frozen=True)
class ArmOptions:
    """What an arm does besides training as its config says.

    Args:
        clean_only: train without the pairs that are known to be mismatched (the papers' "clean" reference), and without
            the candidates that are known to be false negatives.
        redraw_depth: before every epoch score all passages and take so many of each query's best as its candidates;
            0 keeps those that were mined.
        model_folder: where the last state is saved as a model; nowhere if empty.
    """

    clean_only: bool = False
    redraw_depth: int = 0
    model_folder: str = ""


@dataclass
class ArmResult:
    """What an arm came to.

    Args:
        arm: its name.
        seed: of the training.
        history: metrics of every epoch.
        detections: after each epoch, by detector: precision, recall and AUROC on the training pairs.
        values: state (``last``, ``best`` on dev) → measure → query id → value on the test queries.
        best_epoch: epoch of the best state, from 0.
        seconds: of training alone.
    """

    arm: str
    seed: int
    history: list[dict[str, float]] = field(default_factory=list)
    detections: list[dict[str, dict[str, Any]]] = field(default_factory=list)
    values: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    best_epoch: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class PreparedArm:
    """An arm before its first step."""

    trainer: Trainer
    data: Dataset
    corpus: Corpus
    tokenizers: dict[Side, TextTokenizer]
    dtype: torch.dtype

    @property
    def encoder(self) -> LiveEncoder:
        """The model as it is whenever it is asked."""
        return LiveEncoder(self.trainer.model, self.tokenizers, self.dtype)


def prepare_arm(
    config: RunConfig, seed: int, data: ArmData, clean_only: bool, threads: int, listener: Listener
) -> PreparedArm:
    """Put together what trains one arm in this process; the arguments are those of :func:`run_arm`."""
    if not config.train.use_gpu:
        torch.set_num_threads(threads)
    device = torch.device("cuda" if config.train.use_gpu else "cpu")
    dtype = torch_dtype(resolve_dtype(config.train.dtype, device.type)[0])
    opened, corpus = Dataset.open(data.dataset), Corpus.open(data.corpus)
    mined = None if data.negatives is None else Artifact.open(data.negatives, "negatives")
    train = opened.training_tables(config.data.train_split, mined)
    if clean_only:
        false = known_false_negatives(opened, config.data.train_split)
        train = (train[0], train[1].filter(pc.is_null(train[1]["noise"])), _dropped(train[2], false))
    dev = opened.training_tables(config.data.dev_split)
    model = DualEncoder.from_config(config.model, seed).to(device)
    tokenizers = build_tokenizers(config.model)
    setup = build_setup(config.train, seed, model, tokenizers, TrainingInputs(corpus, train, dev), dtype, listener)
    return PreparedArm(Trainer(setup), opened, corpus, tokenizers, dtype)


def run_arm(
    config: RunConfig,
    arm: str,
    seed: int,
    data: ArmData,
    clean_only: bool = False,
    threads: int = 1,
    options: ArmOptions | None = None,
) -> ArmResult:
    """Train and measure one arm.

    Args:
        config: the run with the arm's training.
        arm: its name.
        seed: of the training; the data are the same for all seeds.
        data: the artefacts.
        clean_only: as in :class:`ArmOptions`.
        threads: of the process.
        options: what else it does.
    """
    options = options or ArmOptions(clean_only=clean_only)
    # Both states are reported, whichever the config would keep.
    config = config.model_copy(update={"train": config.train.model_copy(update={"keep": "best"})})
    result = ArmResult(arm, seed)
    watcher = _Watcher(result, options.redraw_depth)
    prepared = prepare_arm(config, seed, data, options.clean_only, threads, watcher)
    trainer = prepared.trainer
    watcher.follow(prepared)
    progress = trainer.run()
    last = watcher.last
    result.values["last"] = _test(config, seed, prepared, last)
    best = trainer.best
    result.values["best"] = result.values["last"] if best is None else _test(config, seed, prepared, best)
    result.history = [row.metrics for row in progress.history]
    result.best_epoch = progress.best_epoch
    result.seconds = sum(row.metrics["seconds"] for row in progress.history) * trainer.num_steps
    if options.model_folder:
        trainer.model.load_state_dict(last)
        trainer.model.save(options.model_folder, prepared.tokenizers)
    return result


def _test(
    config: RunConfig, seed: int, prepared: PreparedArm, state: dict[str, torch.Tensor]
) -> dict[str, dict[str, float]]:
    """Measure → query id → value on the test queries over the whole corpus, of the model in one state."""
    corpus, model = prepared.corpus, prepared.trainer.model
    everything = DevConfig(max_queries=10**9, random_passages=len(corpus))
    tables = prepared.data.training_tables(config.data.test_splits[0])
    retrieval = DevRetrieval(tables, corpus, prepared.tokenizers, everything, seed)
    model.load_state_dict(state)
    ranking = retrieval.rank_passages(model, prepared.dtype, config.search.top_k)
    assert ranking is not None
    return score_queries(parse_measures(config.evaluate.measures), retrieval.dev.qrels, ranking)


def _dropped(negatives: pa.Table, pairs: set[tuple[str, str]]) -> pa.Table:
    """The same candidates, some of them with the action that keeps them from ever being a negative."""
    ids = zip(negatives["query_id"].to_pylist(), negatives["passage_id"].to_pylist(), strict=True)
    actions = negatives["action"].to_pylist()
    changed = ["drop" if pair in pairs else action for pair, action in zip(ids, actions, strict=True)]
    at = negatives.column_names.index("action")
    return negatives.set_column(at, "action", pa.array(changed, pa.string()))


class EpochListener:
    """A listener that is told of finished epochs alone; nothing is saved: an arm that dies is trained again."""

    def after_epoch(self, progress: Progress) -> None:
        """At the end of each epoch."""
        raise NotImplementedError

    def on_step(self, progress: Progress, num_steps: int, metrics: dict[str, float]) -> None:
        """Nothing to do."""

    def on_detection(self, progress: Progress, flags: PairFlags) -> None:
        """Nothing to do: an arm's own detection is examined with those of all arms."""

    def on_checkpoint(self, progress: Progress, save: Callable[[Path], None]) -> None:
        """Only the end of an epoch matters."""
        if not progress.step:
            self.after_epoch(progress)


class _Watcher(EpochListener):
    """Examines the model after each epoch, draws its candidates anew if asked to, and keeps its last state."""

    def __init__(self, result: ArmResult, redraw_depth: int) -> None:
        self.result = result
        self.redraw_depth = redraw_depth
        self.last: dict[str, torch.Tensor] = {}

    def follow(self, arm: PreparedArm) -> None:
        """Watch this arm, which has not begun."""
        self.arm = arm
        setup = arm.trainer.setup
        self.detector = PairDetector(
            setup.batches.examples, arm.corpus, arm.tokenizers, PairDetectionConfig(), setup.config, setup.seed
        )
        self._redraw()

    def after_epoch(self, progress: Progress) -> None:
        trainer = self.arm.trainer
        setup, examples = trainer.setup, trainer.setup.batches.examples
        measured = self.detector.measure(setup.model, progress.epoch, setup.dtype)
        self.result.detections.append(
            {
                name: describe_detection(
                    PairFlags(measured, detector.detect(measured.pairs_N, measured.random_N)),
                    progress.epoch,
                    examples.is_noise,
                )
                for name, detector in DETECTORS.items()
            }
        )
        if progress.finished:
            state = trainer.learners[progress.better_network].model.state_dict()
            self.last = {key: value.detach().cpu().clone() for key, value in state.items()}
        else:
            self._redraw()

    def _redraw(self) -> None:
        if self.redraw_depth:
            batches = self.arm.trainer.setup.batches
            batches.examples = redraw_candidates(self.arm.encoder, batches.examples, self.arm.corpus, self.redraw_depth)


def gap_closed(baseline: float, method: float, reference: float) -> float:
    """The share of the way from a baseline up to a reference that a method has come; NaN where there is no way up.

    >>> gap_closed(0.4, 0.55, 0.6), gap_closed(0.4, 0.35, 0.39)
    (0.75, nan)
    """
    return float(np.round((method - baseline) / (reference - baseline), 12)) if reference > baseline else float("nan")
