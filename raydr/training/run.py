"""The training of a retriever, from artefacts to a saved model, under Ray Train, torchrun or in a single process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import nn

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.examples import Examples, read_examples
from raydr.data.tables import SplitTables
from raydr.errors import ConfigError
from raydr.models.backbone import choose_attention, choose_what_learns, recompute_activations
from raydr.models.config import ModelConfig, Side
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.models.precision import torch_dtype
from raydr.models.tokens import TextTokenizer
from raydr.noise.margins import Margins, read_margins
from raydr.noise.verdict_report import flagged_queries, read_actions
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder, publish_files
from raydr.training.batches import GROUP_OVERHEAD, BatchMaker
from raydr.training.checkpoint import PROGRESS
from raydr.training.collectives import num_ranks, num_ranks_here, rank, send_gradients
from raydr.training.config import TrainConfig
from raydr.training.coteaching import CoTeachingTrainer, require_dropout
from raydr.training.detection import CrossFittedDetector, PairDetector, trusted_rows
from raydr.training.dev import DevRetrieval
from raydr.training.process import WorkerProcess, last_state
from raydr.training.reports import Listener, LogPlace, Watcher, WorkerListener
from raydr.training.signals import Signal, read_signals, signals_of_examples
from raydr.training.trainer import Trainer
from raydr.training.training import OptionalInputs, Training


@dataclass(frozen=True)
class TrainingInputs:
    """The data of a training.

    Args:
        corpus: passages.
        examples: training queries.
        dev: queries, judgments and candidates of the dev split; None without measurement.
        signals: signals of the examples.
        margins: cross-fitted margins of the pairs; None if the detection does not read them.
        trusted: pairs that people have confirmed; None without such pairs.
    """

    corpus: Corpus
    examples: Examples
    dev: SplitTables | None = None
    signals: Sequence[Signal] = ()
    margins: Margins | None = None
    trusted: pa.Table | None = None


def build_trainer(
    config: TrainConfig,
    seed: int,
    model: DualEncoder,
    tokenizers: dict[Side, TextTokenizer],
    inputs: TrainingInputs,
    dtype: torch.dtype,
    listener: Listener,
    wrap: Callable[[nn.Module], nn.Module] = lambda module: module,
) -> Trainer:
    """Make a trainer, with two networks if ``train.coteaching`` is set.

    Args:
        config: settings of training.
        seed: seed of the run.
        model: student on its device.
        tokenizers: tokenizers by side.
        inputs: data of the training.
        dtype: dtype of the forward pass.
        listener: listener of steps, detections and epochs.
        wrap: function that makes a module data-parallel, for example ``DistributedDataParallel``.

    Raises:
        ConfigError: the settings do not fit the model or the data.
    """
    corpus, examples, device = inputs.corpus, inputs.examples, model.device.type
    choose_attention(model, device, dtype)
    choose_what_learns(model, config.optimizer, seed, "train.optimizer")
    if config.recompute_activations:
        recompute_activations(model)
    signals = [*signals_of_examples(examples, corpus), *inputs.signals]
    batches = BatchMaker(
        examples, corpus, tokenizers, config, seed, rank(), num_ranks(), GROUP_OVERHEAD[device], signals
    )
    trainer = Trainer if config.coteaching is None else CoTeachingTrainer
    return trainer(
        config=config,
        model=model,
        batches=batches,
        dtype=dtype,
        seed=seed,
        listener=listener,
        wrap=wrap,
        dev=None if inputs.dev is None else DevRetrieval(inputs.dev, corpus, tokenizers, config.dev, seed),
        detector=_detector(config, seed, tokenizers, inputs),
        trusted=frozenset() if inputs.trusted is None else trusted_rows(inputs.trusted, corpus),
    )


def _detector(
    config: TrainConfig, seed: int, tokenizers: dict[Side, TextTokenizer], inputs: TrainingInputs
) -> PairDetector | CrossFittedDetector | None:
    detection, examples, corpus = config.detection, inputs.examples, inputs.corpus
    if detection is None:
        return None
    if detection.margins == "model":
        return PairDetector(examples, corpus, tokenizers, detection, config, seed)
    if inputs.margins is None:
        raise ConfigError(
            f"the loss {config.loss.name} reads flags by cross-fitted margins, and the training has no margins: add "
            "them, or set train.pair_detection.margins to model"
        )
    return CrossFittedDetector(examples, corpus, inputs.margins, detection, config.positive, seed)


@dataclass(frozen=True)
class TrainingJob:
    """Inputs and settings of a training, for its workers; picklable.

    Args:
        training: settings of the training.
        data, corpus: training pairs and passages.
        optional: other inputs.
        output: folder of the output.
        watcher: display of the progress, from rank 0.
        log: place of the log, which rank 0 opens; None records nothing.
        warmup: state of a shared warm-up to continue from; None starts from the beginning.
        until: number of epochs after which the output is the state; None trains to the end and saves the model.
    """

    training: Training
    data: Dataset
    corpus: Corpus
    optional: OptionalInputs[Artifact]
    output: Folder
    watcher: Watcher
    log: LogPlace | None = None
    warmup: Artifact | None = None
    until: int | None = None


def train_worker(job: TrainingJob, process: WorkerProcess) -> dict[str, Any]:
    """Train on this rank's share of each batch; rank 0 saves the model.

    Args:
        job: inputs and settings of the training.
        process: process of this rank.

    Returns:
        ``history``, ``detections``, ``best_epoch``, ``num_examples``, ``num_steps`` of an epoch, ``world_size``,
        ``dim`` of the vectors, and ``weights``, the sum of each tensor.

    Raises:
        ConfigError, DataError, ModelError: the settings, the data or the checkpoint cannot be used.
        TrainingError: the gradients are not finite.
    """
    with nullcontext() if process.rank or job.log is None else job.log.open() as log:
        listener = WorkerListener(job.watcher, log, process, job.output)
        # Before, the job may have waited for CPUs and GPUs.
        listener.tell(f"training begins, workers: {process.num_ranks}")
        return _train(job, process, listener)


def _train(job: TrainingJob, process: WorkerProcess, listener: WorkerListener) -> dict[str, Any]:
    training, train = job.training, job.training.train
    origin = _origin(training.model, job.optional.start)
    tokenizers = build_tokenizers(origin)
    model = DualEncoder.from_config(origin, training.seed).to(process.device)
    if train.coteaching is not None:
        require_dropout(model)
    # The saved config names the checkpoint of the run, not a folder of this node.
    model.config = training.model
    inputs = _read_inputs(job)
    listener.query_ids = inputs.examples.query_ids
    trainer = build_trainer(
        train,
        training.seed,
        model,
        tokenizers,
        inputs,
        torch_dtype(train.dtype),
        listener,
        wrap=lambda module: send_gradients(process.wrap(module), train.gradients),
    )
    if training.with_optimizer:
        trainer.learner.optimization.load_moments(Path(origin.checkpoint))
    _resume(trainer, process, listener, job.warmup)
    progress = trainer.run(job.until)
    process.wait()
    listener.show_epochs()
    weights = {key: float(value.double().sum()) for key, value in model.state_dict().items()}
    if process.rank == 0 and job.until is not None:
        publish_files(job.output, trainer.copy(), last=PROGRESS)
    elif process.rank == 0:
        publish_files(job.output, lambda path: model.save(path, tokenizers))
        if training.keep_optimizer:
            publish_files(job.output, trainer.chosen.optimization.save_moments)
    return {
        "history": [row.model_dump() for row in progress.history],
        "detections": progress.detections,
        "best_epoch": progress.best_epoch,
        "num_examples": len(inputs.examples),
        "num_steps": trainer.num_steps,
        "world_size": process.num_ranks,
        "dim": model.dim,
        "weights": weights,
    }


def _read_inputs(job: TrainingJob) -> TrainingInputs:
    training, data, optional, corpus = job.training, job.data, job.optional, job.corpus
    split = training.train_split
    examples = read_examples(data, split, optional.negatives, corpus, training.scope, shared=num_ranks_here() > 1)
    return TrainingInputs(
        corpus=corpus,
        examples=examples,
        dev=_read_dev(data, training.dev_split, optional.dev_verdicts),
        signals=read_signals(optional, split, training.train.guide, examples, corpus),
        margins=None if optional.margins is None else read_margins(optional.margins),
        trusted=data.trusted(split),
    )


def _read_dev(data: Dataset, split: str, verdicts: Artifact | None) -> SplitTables | None:
    """Read the dev split, without queries that have a flagged pair, unless no others have judgments."""
    if split not in data.splits:
        return None
    # Candidates are mined for the training split alone.
    tables = data.training_tables(split)
    if verdicts is None:
        return tables
    flagged = pa.array(sorted(flagged_queries(read_actions(verdicts, split))), pa.string())
    queries, judgments, negatives = (
        table.filter(pc.invert(pc.is_in(table["query_id"], value_set=flagged))) for table in tables
    )
    return (queries, judgments, negatives) if judgments.num_rows else tables


def _origin(config: ModelConfig, start: Artifact | None) -> ModelConfig:
    """Return the model's config, with the local folder of the starting model as its checkpoint."""
    if start is None:
        return config
    return config.model_copy(update={"checkpoint": start.local_folder(), "passage_checkpoint": ""})


def _resume(trainer: Trainer, process: WorkerProcess, listener: WorkerListener, warmup: Artifact | None) -> None:
    """Resume an interrupted training, or start from the state of a shared warm-up."""
    folder = last_state(process.states)
    if folder is not None:
        trainer.resume(folder)
        listener.tell(f"going on from epoch {trainer.progress.epoch + 1}, step {trainer.progress.step}")
    elif warmup is not None:
        trainer.resume(Path(warmup.local_folder()))
        listener.tell(f"going on from the shared warm-up, epochs: {trainer.progress.epoch}")
