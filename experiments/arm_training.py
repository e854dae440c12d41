"""Train and measure an arm of an experiment in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset, known_false_negatives
from raydr.data.examples import load_examples
from raydr.data.tables import pairs_of
from raydr.evaluation.metrics import parse_measures, score_queries
from raydr.models.config import Side
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.models.precision import torch_dtype
from raydr.models.tokens import TextTokenizer
from raydr.noise.detectors.anchored import AnchoredDetector
from raydr.noise.detectors.base import Detector
from raydr.noise.detectors.calibrated import CalibratedDetector
from raydr.noise.detectors.gaussian import GaussianDetector
from raydr.noise.margins import PairMargins, read_margins
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder
from raydr.training.checkpoint import Progress, Save
from raydr.training.detection import PairDetector, PairFlags, describe_detection
from raydr.training.dev import DevRetrieval
from raydr.training.run import TrainingInputs, build_trainer
from raydr.training.sections import DevConfig, PairDetectionConfig
from raydr.training.trainer import Trainer
from raydr.training.training import Training

#: Detectors applied to each arm's model after each epoch, whatever the arm's own training uses.
DETECTORS: dict[str, Detector] = {
    "paper": GaussianDetector(),
    "calibrated": CalibratedDetector(min_separation=1),
    "anchored": AnchoredDetector(),
}
#: File of an arm beside its result.
MARGINS = "margins.npz"


@dataclass(frozen=True)
class ArmOptions:
    """Options of an arm beyond its config.

    Args:
        clean_only: train without the pairs that are known to be mismatched (the papers' "clean" reference), and without
            the candidates that are known to be false negatives.
        drop_at_random: drop as many of each query's candidates as judges dropped or relabelled, but random candidates.
            This control separates the effect of a filter from that of fewer candidates.
        keep_margins: also measure the pairs before training, always against the same random passages, and store the
            margins.
        examined: measure the pairs after each epoch, and apply each detector to them.
    """

    clean_only: bool = False
    drop_at_random: bool = False
    keep_margins: bool = False
    examined: bool = True


@dataclass
class ArmResult:
    """The result of an arm.

    Args:
        arm: name of the arm.
        seed: of the training.
        history: metrics of each epoch.
        detections: after each epoch, by detector: precision, recall and AUROC on the training pairs.
        values: state (``last``, ``best`` on dev) → measure → query id → value on the test queries.
        best_epoch: epoch of the best state, from 0.
        seconds: of the training alone.
    """

    arm: str
    seed: int
    history: list[dict[str, float]] = field(default_factory=list)
    detections: list[dict[str, dict[str, Any]]] = field(default_factory=list)
    values: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    best_epoch: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class ArmData:
    """The training data of an arm.

    Args:
        dataset: queries and judgments.
        corpus: the corpus of the data set.
        negatives: mined candidates of the training split, if the arm uses hard negatives.
        margins: cross-fitted margins of the pairs, if its detection reads them.
    """

    dataset: Dataset
    corpus: Corpus
    negatives: Artifact | None
    margins: Artifact | None = None


@dataclass(frozen=True)
class PreparedArm:
    """An arm before its first step."""

    trainer: Trainer
    data: ArmData
    tokenizers: dict[Side, TextTokenizer]

    def detector(self) -> PairDetector:
        """Return the detector that measures the pairs, independent of the arm's training."""
        trainer, detection = self.trainer, PairDetectionConfig()
        examples = trainer.batches.examples
        return PairDetector(examples, self.data.corpus, self.tokenizers, detection, trainer.config, trainer.seed)


@dataclass(frozen=True)
class AfterEpoch:
    """A listener that passes on finished epochs and saves nothing: an arm that fails is trained again."""

    tell: Callable[[Progress], None]

    def on_step(self, progress: Progress, num_steps: int, metrics: dict[str, float]) -> None:
        """Ignore steps."""

    def on_detection(self, progress: Progress, flags: PairFlags) -> None:
        """Ignore the arm's own detections: all arms are examined with the same detectors."""

    def has_notice(self) -> bool:
        return False

    def on_checkpoint(self, progress: Progress, copy: Callable[[], Save]) -> None:
        """Pass on the end of an epoch."""
        if not progress.step:
            self.tell(progress)


def prepare_arm(
    training: Training, data: ArmData, after_epoch: Callable[[Progress], None], options: ArmOptions = ArmOptions()
) -> PreparedArm:
    """Build the trainer of an arm for this process.

    Args:
        training: settings of the arm.
        data: of the arm.
        after_epoch: called at the end of each epoch.
        options: of the arm.
    """
    if not training.train.use_gpu:
        torch.set_num_threads(1)
    train = data.dataset.training_tables(training.train_split, data.negatives)
    if options.clean_only:
        false = known_false_negatives(data.dataset, training.train_split)
        train = (train[0], train[1].filter(pc.is_null(train[1]["noise"])), _dropped(train[2], false))
    if options.drop_at_random:
        train = (*train[:2], _dropped_at_random(train[2], np.random.default_rng(training.seed)))
    margins = None if data.margins is None else read_margins(data.margins)
    dev = data.dataset.training_tables(training.dev_split)
    examples = load_examples(*train, data.corpus, training.scope)
    inputs = TrainingInputs(data.corpus, examples, dev, margins=margins)
    model, tokenizers = DualEncoder.from_config(training.model, training.seed), build_tokenizers(training.model)
    model = model.to(torch.device("cuda" if training.train.use_gpu else "cpu"))
    dtype = torch_dtype(training.train.dtype)
    trainer = build_trainer(training.train, training.seed, model, tokenizers, inputs, dtype, AfterEpoch(after_epoch))
    return PreparedArm(trainer, data, tokenizers)


def run_arm(
    training: Training, data: ArmData, options: ArmOptions, test: Mapping[str, Any], output: Folder | None = None
) -> ArmResult:
    """Train and measure an arm in this process.

    Args:
        training: settings of the arm.
        data: of the arm.
        options: of the arm.
        test: the searched ``split``, the ``measures``, and ``top_k``, the number of passages for each query.
        output: folder of the margins, if they are kept.
    """
    result, measured = ArmResult("", training.seed), list[PairMargins]()
    last: dict[str, torch.Tensor] = {}

    def measure(epoch: int) -> PairMargins:
        measured.append(detector.measure(trainer.model, 0 if options.keep_margins else epoch, trainer.dtype))
        return measured[-1]

    def examine(epoch: int) -> None:
        margins = measure(epoch)
        result.detections.append(
            {
                name: describe_detection(
                    PairFlags(margins, detector.detect(margins.pairs_N, margins.random_N)),
                    epoch,
                    is_noise,
                )
                for name, detector in DETECTORS.items()
            }
        )

    def after_epoch(progress: Progress) -> None:
        if options.examined:
            examine(progress.epoch)
        if progress.finished:
            state = arm.trainer.chosen.model.state_dict()
            last.update({key: value.detach().cpu().clone() for key, value in state.items()})

    arm = prepare_arm(training, data, after_epoch, options)
    trainer = arm.trainer
    detector, is_noise = arm.detector(), trainer.batches.examples.is_noise
    if options.keep_margins:
        measure(0)
    progress = trainer.run()
    result.values["last"] = _test(arm, test, last)
    result.history = [row.metrics for row in progress.history]
    result.best_epoch = progress.best_epoch
    if trainer.best is None or progress.best_epoch == len(result.history) - 1:
        result.values["best"] = result.values["last"]
    else:
        result.values["best"] = _test(arm, test, trainer.best)
    result.seconds = sum(row.metrics["seconds"] for row in progress.history) * trainer.num_steps
    if options.keep_margins and output is not None:
        values_EN = np.stack([margins.pairs_N for margins in measured])
        random_EN = np.stack([margins.random_N for margins in measured])
        with output.publish(MARGINS) as path, open(path, "wb") as file:
            np.savez(file, values_EN=values_EN, random_EN=random_EN, mismatched_N=is_noise)
    return result


def _test(arm: PreparedArm, test: Mapping[str, Any], state: dict[str, torch.Tensor]) -> dict[str, dict[str, float]]:
    """Return measure → query id → value on the test queries over the whole corpus, for a state of the model."""
    trainer, model = arm.trainer, arm.trainer.model
    everything = DevConfig(max_queries=10**9, random_passages=len(arm.data.corpus))
    tables = arm.data.dataset.training_tables(test["split"])
    retrieval = DevRetrieval(tables, arm.data.corpus, arm.tokenizers, everything, trainer.seed)
    arm.trainer.learner.optimization.load_trainable(state)
    ranking = retrieval.rank_passages(model, trainer.dtype, test["top_k"])
    assert ranking is not None
    return score_queries(parse_measures(test["measures"]), retrieval.dev.qrels, ranking)


def _dropped(negatives: pa.Table, pairs: set[tuple[str, str]]) -> pa.Table:
    """Return the candidates with the action ``drop`` for some pairs."""
    rows = zip(pairs_of(negatives), negatives["action"].to_pylist(), strict=True)
    changed = ["drop" if pair in pairs else action for pair, action in rows]
    return _with_column(negatives, "action", pa.array(changed, pa.string()))


def _dropped_at_random(negatives: pa.Table, rng: np.random.Generator) -> pa.Table:
    """Return the candidates with actions and weights shuffled within each query; ``relabel`` becomes ``drop``."""
    query_N = negatives["query_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    source_N = np.empty_like(query_N)
    source_N[np.argsort(query_N, kind="stable")] = np.lexsort((rng.random(len(query_N)), query_N))
    actions = pc.if_else(pc.equal(negatives["action"], "relabel"), "drop", negatives["action"])
    shuffled = _with_column(negatives, "action", actions.take(source_N))
    return _with_column(shuffled, "weight", negatives["weight"].take(source_N))


def _with_column(table: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, values)
