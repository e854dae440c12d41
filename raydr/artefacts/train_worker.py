"""What one training worker does for a dual encoder, and whom it tells."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from raydr.artefacts.margins import load_margins
from raydr.artefacts.ranker_scores import read_ranker_scores
from raydr.console import counted
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.embeddings import Embeddings
from raydr.data.schema import write_parquet
from raydr.data.training_signals import GuideVectors
from raydr.distributed.member import WorkerContext
from raydr.models.config import ModelConfig
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder, publish_files
from raydr.tracking.tracker import NullTracker, Tracker, TrackerHandle
from raydr.training.checkpoint import PROGRESS
from raydr.training.training import OptionalInputs, Training

if TYPE_CHECKING:
    from torch import nn

    from raydr.artefacts.train_progress import Watcher
    from raydr.models.config import Side
    from raydr.models.tokens import TextTokenizer
    from raydr.training.checkpoint import Progress, Save
    from raydr.training.detection import PairFlags
    from raydr.training.trainer import Trainer


@dataclass(frozen=True)
class TrainingJob:
    """What every worker of one training knows; picklable.

    Args:
        training: its settings.
        data, corpus: what is trained on.
        optional: what else is read.
        output: where the model goes.
        tracker: opened by the first worker.
        watcher: told by the first worker how far training is.
        warmup: the state that it begins with; None: the start.
        until: epochs after which the state is the output, and no model; None: the model.
    """

    training: Training
    data: Dataset
    corpus: Corpus
    optional: OptionalInputs[Artifact]
    output: Folder
    tracker: TrackerHandle | None
    watcher: Watcher
    warmup: Artifact | None = None
    until: int | None = None


def train_worker(job: TrainingJob, member: WorkerContext) -> dict[str, Any]:
    """Train on this worker's share of each batch; returns the outcome."""
    handle = job.tracker
    with handle.open() if handle is not None and member.rank == 0 else nullcontext(NullTracker()) as tracker:
        listener = WorkerListener(tracker, job.watcher, member, job.output)
        # Until now it may have waited for its CPUs and GPUs.
        listener.tell(f"training begins with {counted(member.num_ranks, 'worker')}")
        return _train(job, member, listener)


def _train(job: TrainingJob, member: WorkerContext, listener: WorkerListener) -> dict[str, Any]:
    trainer, tokenizers = _set_up(job, member, listener)
    progress = trainer.run(job.until)
    member.wait()
    listener.tell_epochs()
    setup = trainer.setup
    weights = {key: float(value.double().sum()) for key, value in setup.model.state_dict().items()}
    if member.rank == 0 and job.until is not None:
        publish_files(job.output, trainer.copy(), last=PROGRESS)
    elif member.rank == 0:
        publish_files(job.output, lambda path: setup.model.save(path, tokenizers))
        if job.training.keep_optimizer:
            publish_files(job.output, trainer.chosen.optimization.save_moments)
    return {
        "history": [row.model_dump() for row in progress.history],
        "detections": progress.detections,
        "best_epoch": progress.best_epoch,
        "num_examples": len(setup.batches.examples),
        "num_steps": setup.batches.num_steps,
        "world_size": member.num_ranks,
        "dim": setup.model.dim,
        "weights": weights,
    }


def _set_up(
    job: TrainingJob, member: WorkerContext, listener: WorkerListener
) -> tuple[Trainer, dict[Side, TextTokenizer]]:
    """The trainer in the state that it goes on from, and the model's tokenizers."""
    from raydr.models.dual_encoder import DualEncoder, build_tokenizers
    from raydr.models.precision import torch_dtype
    from raydr.training.collectives import send_gradients
    from raydr.training.coteaching import require_dropout
    from raydr.training.run import TrainingInputs, build_setup, build_trainer

    training, train = job.training, job.training.train
    optional, data = job.optional, job.data
    origin = _origin(training.model, optional.start)
    tokenizers = build_tokenizers(origin)
    model = DualEncoder.from_config(origin, training.seed).to(member.device)
    if train.coteaching is not None:
        require_dropout(model)
    # What is saved with the model names the checkpoint of the run, not a folder of this node.
    model.config = training.model
    inputs = TrainingInputs(
        corpus=job.corpus,
        train=data.training_tables(training.train_split, optional.negatives),
        # What was mined is of the training split alone.
        dev=data.training_tables(training.dev_split) if training.dev_split in data.splits else None,
        margins=load_margins(optional.margins) if optional.margins is not None else None,
        ranker_scores=_ranker_scores(job),
        guide=_guide_vectors(optional),
        scope=training.scope,
        trusted=data.trusted(training.train_split),
    )
    dtype = torch_dtype(train.dtype)

    def wrap(module: nn.Module) -> nn.Module:
        return send_gradients(member.wrap(module), train.gradients)

    setup = build_setup(train, training.seed, model, tokenizers, inputs, dtype, listener, wrap)
    listener.query_ids = setup.batches.examples.query_ids
    trainer = build_trainer(setup)
    if training.with_optimizer:
        trainer.learner.optimization.take_moments(Path(origin.checkpoint))
    _go_on(trainer, member, listener, job.warmup)
    return trainer, tokenizers


def _ranker_scores(job: TrainingJob) -> pa.Table | None:
    scores = job.optional.ranker_scores
    return None if scores is None else read_ranker_scores(scores, job.training.train_split)


def _guide_vectors(optional: OptionalInputs[Artifact]) -> GuideVectors | None:
    if optional.guide_queries is None or optional.guide_passages is None:
        return None
    return GuideVectors(Embeddings(optional.guide_queries), Embeddings(optional.guide_passages))


def _origin(config: ModelConfig, start: Artifact | None) -> ModelConfig:
    """The model's config with the folder of the starting model, as this node sees it, for the checkpoint."""
    if start is None:
        return config
    return config.model_copy(update={"checkpoint": start.local_folder(), "passage_checkpoint": ""})


def _go_on(trainer: Trainer, member: WorkerContext, listener: WorkerListener, warmup: Artifact | None) -> None:
    """Take up an interrupted run, or the state after the epochs that other trainings begin with too."""
    with member.last_state() as folder:
        if folder is not None:
            trainer.resume(folder)
            listener.tell(f"going on from epoch {trainer.progress.epoch + 1}, step {trainer.progress.step}")
            return
    if warmup is not None:
        trainer.resume(Path(warmup.local_folder()))
        listener.tell(f"going on from the shared warm-up of {counted(trainer.progress.epoch, 'epoch')}")


@dataclass
class WorkerListener:
    """Keeps the state, sends metrics to MLflow and progress to whoever watches. Rank 0 speaks."""

    tracker: Tracker
    watcher: Watcher
    member: WorkerContext
    output: Folder

    def __post_init__(self) -> None:
        self.rank = self.member.rank
        #: Ids of the training queries in the order of the detector's flags; set when the examples are loaded.
        self.query_ids: list[str] = []
        #: After the last epoch whose state was handed to the member, and how many epochs were told of.
        self.progress: Progress | None = None
        self.num_told = 0

    def tell(self, message: str) -> None:
        """Show a line on the driver."""
        if self.rank == 0:
            self.watcher.tell(message)

    def on_step(self, progress: Progress, num_steps: int, metrics: dict[str, float]) -> None:
        if self.rank:
            return
        if self.member.kept():
            self.tell_epochs()
        self.watcher.step(progress, num_steps)
        if metrics:
            self.tracker.log_metrics({f"step/{key}": value for key, value in metrics.items()}, progress.global_step)

    def on_detection(self, progress: Progress, flags: PairFlags) -> None:
        if self.rank:
            return
        detection = progress.detections[-1]
        known = {key: detection[key] for key in ("precision", "recall", "auroc") if detection.get(key) is not None}
        facts = ", ".join(f"{key} {value:.3f}" for key, value in known.items())
        message = f"{detection['share_flagged']:.1%} of the pairs flagged" + (f" ({facts})" if facts else "")
        if detection["reason"]:
            message = f"detection is inconclusive, and all pairs are kept: {detection['reason']}"
        self.tell(f"epoch {progress.epoch + 1}: {message}")
        numbers = {"share_flagged": detection["share_flagged"]} | known
        self.tracker.log_metrics({f"detection/{key}": value for key, value in numbers.items()}, progress.epoch)
        table = pa.table(
            {
                "query_id": self.query_ids,
                "perplexity": flags.perplexities.pairs_N,
                "random_pair": flags.perplexities.random_N,
                "log_posterior": flags.detection.log_posterior,
                "clean": flags.clean,
            }
        )
        with self.output.publish(f"detection/epoch-{progress.epoch + 1:03d}.parquet") as path:
            write_parquet(table, path)

    def on_checkpoint(self, progress: Progress, copy: Callable[[], Save]) -> None:
        finished_epoch = progress.step == 0
        if self.rank == 0:
            self.member.wait()
            self.tell_epochs()
        metrics = dict(progress.history[-1].metrics) if finished_epoch and progress.history else {}
        report = {"epoch": progress.epoch, "step": progress.step, "global_step": progress.global_step, **metrics}
        self.member.report(report, copy)
        self.progress = progress if finished_epoch else self.progress

    def tell_epochs(self) -> None:
        """Tell of the epochs since the last time, for when their state is kept: who hears of one may end this process,
        and go on from there."""
        progress = self.progress
        if self.rank or progress is None:
            return
        for row in progress.history[self.num_told :]:
            history = progress.history[: row.epoch + 1]
            self.watcher.epoch(progress.changed(epoch=row.epoch + 1, history=history))
            self.tracker.log_metrics({f"epoch/{key}": value for key, value in row.metrics.items()}, row.epoch + 1)
            self.num_told = row.epoch + 1
