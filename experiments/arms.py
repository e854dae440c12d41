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

from raydr.artifacts import Artifact
from raydr.config import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset, read_split
from raydr.evaluation.metrics import parse_measures, score_queries
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.models.precision import resolve_dtype, torch_dtype
from raydr.noise.calibrated import CalibratedDetector
from raydr.noise.mixture import GaussianDetector
from raydr.storage import Folder
from raydr.training.checkpoint import Progress
from raydr.training.config import DevConfig, PairDetectionConfig
from raydr.training.detection import PairDetector, PairFlags, describe_detection
from raydr.training.dev import DevRetrieval, build_dev_set
from raydr.training.run import SplitTables, TrainingInputs, build_setup
from raydr.training.trainer import Trainer

#: The detectors that every arm's model is examined with after each epoch, whatever it trains with.
DETECTORS = {"paper": GaussianDetector(), "calibrated": CalibratedDetector(min_separation=1)}


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


def run_arm(config: RunConfig, arm: str, seed: int, data: ArmData, clean_only: bool, threads: int = 1) -> ArmResult:
    """Train and measure one arm.

    Args:
        config: the run with the arm's training.
        arm: its name.
        seed: of the training; the data are the same for all seeds.
        data: the artefacts.
        clean_only: train without the pairs that are known to be mismatched (the papers' "clean" reference).
        threads: of the process.
    """
    if not config.train.use_gpu:
        torch.set_num_threads(threads)
    device = torch.device("cuda" if config.train.use_gpu else "cpu")
    dtype = torch_dtype(resolve_dtype(config.train.dtype, device.type)[0])
    opened, corpus = Dataset.open(data.dataset), Corpus.open(data.corpus)
    train = _tables(opened, config.data.train_split, data.negatives)
    if clean_only:
        train = (train[0], train[1].filter(pc.is_null(train[1]["noise"])), train[2])
    dev = _tables(opened, config.data.dev_split, None)
    model = DualEncoder.from_config(config.model, seed).to(device)
    tokenizers = build_tokenizers(config.model)
    result = ArmResult(arm, seed)
    watcher = _Watcher(result)
    setup = build_setup(config.train, seed, model, tokenizers, TrainingInputs(corpus, train, dev), dtype, watcher)
    trainer = Trainer(setup)
    watcher.follow(trainer, corpus)
    progress = trainer.run()
    test = config.data.test_splits[0]
    everything = DevConfig(max_queries=10**9, random_passages=len(corpus))
    retrieval = DevRetrieval(
        build_dev_set(*_tables(opened, test, None), corpus, everything, seed), corpus, tokenizers, everything
    )
    measures = parse_measures(config.evaluate.measures)
    states = {"last": watcher.last, "best": trainer.best or watcher.last}
    for name, state in states.items():
        model.load_state_dict(state)
        ranking = retrieval.rank_passages(model, dtype, config.search.top_k)
        assert ranking is not None
        result.values[name] = score_queries(measures, retrieval.dev.qrels, ranking)
    result.history = [row.metrics for row in progress.history]
    result.best_epoch = progress.best_epoch
    result.seconds = sum(row.metrics["seconds"] for row in progress.history) * setup.batches.num_steps
    return result


def _tables(data: Dataset, split: str, negatives: Folder | None) -> SplitTables:
    mined: pa.Table = data.negatives(split)
    if negatives is not None:
        mined = read_split(Artifact.open(negatives, "negatives"), "negatives", split)
    return data.queries(split), data.qrels(split), mined


class _Watcher:
    """A listener that examines the model after each epoch, and keeps its last state."""

    def __init__(self, result: ArmResult) -> None:
        self.result = result
        self.last: dict[str, torch.Tensor] = {}

    def follow(self, trainer: Trainer, corpus: Corpus) -> None:
        """Watch this trainer."""
        setup = trainer.setup
        self.trainer = trainer
        self.detector = PairDetector(
            setup.batches.examples, corpus, setup.batches.tokenizers, PairDetectionConfig(), setup.config, setup.seed
        )

    def on_step(self, progress: Progress, num_steps: int, metrics: dict[str, float]) -> None:
        """Nothing to do."""

    def on_detection(self, progress: Progress, flags: PairFlags) -> None:
        """Nothing to do: the arm's own detection is examined with those of all arms."""

    def on_checkpoint(self, progress: Progress, save: Callable[[Path], None]) -> None:
        """Examine the model; ``save`` is not needed, an arm that dies is trained again."""
        if progress.step:
            return
        setup, examples = self.trainer.setup, self.trainer.setup.batches.examples
        measured = self.detector.measure(setup.model, progress.epoch, setup.dtype, setup.model.config.scale)
        self.result.detections.append(
            {
                name: describe_detection(
                    PairFlags(measured, detector.detect(measured)), progress.epoch, examples.is_noise
                )
                for name, detector in DETECTORS.items()
            }
        )
        if progress.finished:
            state = self.trainer.learners[progress.better_network].model.state_dict()
            self.last = {key: value.detach().cpu().clone() for key, value in state.items()}


def gap_closed(baseline: float, method: float, reference: float) -> float:
    """The share of the way from a baseline to a reference that a method has come.

    >>> gap_closed(0.4, 0.55, 0.6)
    0.75
    """
    return float(np.round((method - baseline) / (reference - baseline), 12)) if reference != baseline else float("nan")
