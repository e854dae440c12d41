"""What one Ray Train worker does for a dual encoder, and whom it tells."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from raydr.artifacts import Artifact
from raydr.config import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset, read_split
from raydr.data.schema import write_parquet
from raydr.errors import TrainingError
from raydr.stages.worker_group import publish_files, report_checkpoint, set_worker_threads
from raydr.storage import Folder
from raydr.training.checkpoint import PROGRESS

if TYPE_CHECKING:
    from raydr.tracking import Tracker, TrackerHandle
    from raydr.training.checkpoint import Progress
    from raydr.training.detection import PairFlags
    from raydr.training.trainer import Trainer


def worker_arguments(
    config: RunConfig,
    dataset: Folder,
    corpus: Folder,
    negatives: Folder | None,
    output: Folder,
    dtype: str,
    tracker: TrackerHandle | None,
    view: Any,
    warmup: Folder,
) -> dict[str, Any]:
    """The arguments of :func:`train_worker` as plain values."""
    return {
        "config": config.model_dump(mode="json"),
        "dataset": dataset.url,
        "corpus": corpus.url,
        "negatives": negatives.url if negatives is not None else None,
        "output": output.url,
        "dtype": dtype,
        "tracker": tracker,
        "view": view,
        "warmup": warmup.url,
    }


def train_worker(arguments: dict[str, Any]) -> dict[str, Any]:
    """Train on this worker's share of each batch; returns the outcome, or an error that must not be retried."""
    import ray.train

    handle = arguments["tracker"]
    rank = ray.train.get_context().get_world_rank()
    with handle.open() if handle is not None and rank == 0 else nullcontext() as tracker:
        return _train(arguments, RayListener(tracker, arguments["view"], rank, Folder(arguments["output"])))


def _train(arguments: dict[str, Any], listener: RayListener) -> dict[str, Any]:
    import ray.train
    from ray.train.torch import get_device, prepare_model

    from raydr.models.dual_encoder import DualEncoder, build_tokenizers
    from raydr.models.precision import torch_dtype
    from raydr.training.run import TrainingInputs, build_setup
    from raydr.training.trainer import Trainer

    config = RunConfig.parse(arguments["config"])
    context = ray.train.get_context()
    set_worker_threads(config.train)
    data = Dataset.open(arguments["dataset"])
    tokenizers = build_tokenizers(config.model)
    model = DualEncoder.from_config(config.model, config.seed).to(get_device())
    has_dev = config.data.dev_split in data.splits
    inputs = TrainingInputs(
        corpus=Corpus.open(arguments["corpus"]),
        train=_tables(data, config.data.train_split, arguments["negatives"]),
        dev=_tables(data, config.data.dev_split, arguments["negatives"]) if has_dev else None,
    )
    dtype = torch_dtype(arguments["dtype"])
    setup = build_setup(config.train, config.seed, model, tokenizers, inputs, dtype, listener, wrap=prepare_model)
    listener.query_ids = setup.batches.examples.query_ids
    trainer = Trainer(setup)
    _go_on(trainer, config, Folder(arguments["warmup"]), listener)
    try:
        progress = trainer.run()
    except TrainingError as error:
        # Returned and not raised: Ray Train would start the group again and run into the same step.
        return {"error": str(error)}
    weights = {key: float(value.double().sum()) for key, value in model.state_dict().items()}
    if context.get_world_rank() == 0:
        publish_files(Folder(arguments["output"]), lambda path: model.save(path, tokenizers))
    return {
        "history": [row.model_dump() for row in progress.history],
        "detections": progress.detections,
        "best_epoch": progress.best_epoch,
        "num_examples": len(setup.batches.examples),
        "num_steps": setup.batches.num_steps,
        "world_size": context.get_world_size(),
        "dim": model.dim,
        "weights": weights,
    }


def _go_on(trainer: Trainer, config: RunConfig, warmup: Folder, listener: RayListener) -> None:
    """Take up an interrupted run, or the state that another training left after the same first epochs."""
    import ray.train

    epochs = config.train.loss.num_warmup_epochs
    listener.share(warmup, epochs or config.train.share_warmup or 0)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            trainer.resume(Path(folder))
        listener.tell(f"going on from epoch {trainer.progress.epoch + 1}, step {trainer.progress.step}")
    elif epochs and (warmup / _epoch_name(epochs)).exists(PROGRESS):
        trainer.resume(Path((warmup / _epoch_name(epochs)).localize("")))
        listener.tell(f"the first {epochs} epochs of plain NCE are there from another training: going on from them")


def _tables(data: Dataset, split: str, negatives: str | None) -> tuple[pa.Table, pa.Table, pa.Table]:
    mined = data.negatives(split)
    if negatives is not None:
        mined = read_split(Artifact.open(negatives, "negatives"), "negatives", split)
    return data.queries(split), data.qrels(split), mined


def _epoch_name(epochs: int) -> str:
    return f"epoch-{epochs}"


class RayListener:
    """Reports checkpoints to Ray Train, metrics to MLflow, progress to the driver. Rank 0 speaks."""

    def __init__(self, tracker: Tracker | None, view: Any, rank: int, output: Folder) -> None:
        self.rank = rank
        self.output = output
        #: Ids of the training queries in the order of the detector's flags; set when the examples are loaded.
        self.query_ids: list[str] = []
        self.view = view
        self.warmup: Folder | None = None
        self.shared_epoch = 0
        self.tracker = tracker

    def share(self, warmup: Folder, epochs: int) -> None:
        """Keep the state after so many epochs in a folder that other trainings look into; 0 keeps none."""
        self.warmup = warmup / _epoch_name(epochs) if epochs else None
        self.shared_epoch = epochs

    def tell(self, message: str) -> None:
        """Show a line on the driver."""
        if self.rank == 0:
            self.view.tell.remote(message)

    def on_step(self, progress: Progress, num_steps: int, metrics: dict[str, float]) -> None:
        if self.rank:
            return
        self.view.step.remote(progress.epoch, progress.step, num_steps, metrics)
        if metrics and self.tracker is not None:
            self.tracker.log_metrics({f"step/{key}": value for key, value in metrics.items()}, progress.global_step)

    def on_detection(self, progress: Progress, flags: PairFlags) -> None:
        if self.rank:
            return
        found = progress.detections[-1]
        known = {key: found[key] for key in ("precision", "recall", "auroc") if found.get(key) is not None}
        facts = [f"{key} {value:.3f}" for key, value in known.items()] + [found["reason"]] * bool(found["reason"])
        details = f" ({', '.join(facts)})" if facts else ""
        self.tell(f"epoch {progress.epoch + 1}: {found['share_flagged']:.1%} of the pairs flagged{details}")
        if self.tracker is not None:
            numbers = {"share_flagged": found["share_flagged"]} | known
            self.tracker.log_metrics({f"detection/{key}": value for key, value in numbers.items()}, progress.epoch)
        table = pa.table(
            {
                "query_id": self.query_ids,
                "perplexity": flags.perplexities,
                "log_posterior": flags.detection.log_posterior,
                "clean": flags.clean,
            }
        )
        with self.output.publish(f"detection/epoch-{progress.epoch + 1:03d}.parquet") as path:
            write_parquet(table, path)

    def on_checkpoint(self, progress: Progress, save: Callable[[Path], None]) -> None:
        finished_epoch = progress.step == 0
        metrics = dict(progress.history[-1].metrics) if finished_epoch and progress.history else {}
        if self.rank == 0 and metrics:
            self.view.epoch.remote(progress.epoch, metrics)
            if self.tracker is not None:
                self.tracker.log_metrics({f"epoch/{key}": value for key, value in metrics.items()}, progress.epoch)
        if self.rank == 0 and finished_epoch and progress.epoch == self.shared_epoch:
            self._share_state(save)
        report = {"epoch": progress.epoch, "step": progress.step, "global_step": progress.global_step, **metrics}
        report_checkpoint(report, save)

    def _share_state(self, save: Callable[[Path], None]) -> None:
        if self.warmup is None or self.warmup.exists(PROGRESS):
            return
        with tempfile.TemporaryDirectory(prefix="raydr-state-") as scratch:
            save(Path(scratch))
            # The progress comes last: its presence says that the state is whole.
            for file in sorted(Path(scratch).iterdir(), key=lambda path: path.name == PROGRESS):
                with self.warmup.publish(file.name) as path:
                    shutil.copyfile(file, path)
