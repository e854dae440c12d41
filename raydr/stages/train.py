"""Training on Ray Train: worker groups, checkpoints, and the finished model as an artefact."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from raydr.artifacts import Artifact, Building, Identity, begin, fingerprint_of
from raydr.config import RunConfig
from raydr.console import say, show_table
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset, read_split
from raydr.data.schema import write_parquet
from raydr.errors import ArtifactError, TrainingError
from raydr.models.checkpoint import checkpoint_fingerprint
from raydr.models.config import Dtype
from raydr.stages.train_progress import TrainingView
from raydr.storage import Folder
from raydr.training.checkpoint import PROGRESS

if TYPE_CHECKING:
    from raydr.tracking import Tracker, TrackerHandle
    from raydr.training.checkpoint import Progress
    from raydr.training.detection import PairFlags

#: Raised when training gives another model for the same config.
VERSION = 1

#: Settings of training that do not change its result.
_NEUTRAL = {
    "num_workers",
    "cpus_per_worker",
    "use_gpu",
    "max_failures",
    "checkpoint_steps",
    "log_steps",
    "share_warmup",
}

#: Settings of training that play no part before a loss's warm-up is over.
_AFTER_WARMUP = {"loss", "teacher", "pair_detection"}


def train(
    config: RunConfig,
    dataset: Folder,
    corpus: Folder,
    output: Folder,
    negatives: Folder | None = None,
    tracker: TrackerHandle | None = None,
    overwrite: bool = False,
) -> Artifact:
    """Train a dual encoder on Ray Train.

    Args:
        config: the run.
        dataset: a ``dataset`` artefact; ``data.train_split`` is trained on, ``data.dev_split`` chooses the epoch.
        corpus: the corpus it was prepared with.
        output: where the ``model`` artefact goes; checkpoints lie beside it until it is finished.
        negatives: a ``negatives`` artefact with candidate hard negatives; the data set's own if None.
        tracker: where step and epoch metrics are logged.
        overwrite: replace a model that was trained differently.

    Raises:
        ArtifactError: the data set was prepared with another corpus.
        TrainingError: training broke off; the last checkpoint is kept and the same command goes on from it.
    """
    opened = Dataset.open(dataset)
    check_corpus(opened, corpus)
    dtype, reason = training_dtype(config, config.train.dtype)
    inputs = {
        "dataset": opened.fingerprint,
        "corpus": opened.corpus_fingerprint,
        "checkpoint": checkpoint_fingerprint(config.model),
    }
    if negatives is not None:
        inputs["negatives"] = Artifact.open(negatives, "negatives").fingerprint
    identity = Identity(
        kind="model",
        version=VERSION,
        config={
            "model": config.model.model_dump(mode="json", exclude={"checkpoint", "passage_checkpoint"}),
            "train": config.train.model_dump(mode="json", exclude=_NEUTRAL) | {"dtype": dtype},
            "splits": [config.data.train_split, config.data.dev_split],
            "seed": config.seed,
        },
        inputs=inputs,
    )
    with begin(output, identity, overwrite) as making:
        if isinstance(making, Artifact):
            say(f"model {output}: already trained with these settings, reused")
            return making
        say(f"training in {dtype}: {reason}")
        return _fit(config, making, dataset, corpus, negatives, dtype, tracker)


def check_corpus(dataset: Dataset, corpus: Folder) -> None:
    found = Artifact.open(corpus, "corpus").fingerprint
    if found != dataset.corpus_fingerprint:
        raise ArtifactError(
            f"the data set at {dataset.artifact.folder} was prepared with corpus {dataset.corpus_fingerprint}, "
            f"the corpus at {corpus} is {found}: give the corpus that was made with it"
        )


def training_dtype(config: RunConfig, dtype: Dtype) -> tuple[str, str]:
    """The arithmetic and its reason, resolved on a worker of the kind that will train."""
    import ray

    from raydr.models.precision import resolve_dtype

    device = "cuda" if config.train.use_gpu else "cpu"
    gpus = ray.cluster_resources().get("GPU", 0)
    if config.train.use_gpu and gpus < 1:
        raise TrainingError("train.use_gpu is set, but Ray has no GPU; unset it to train on CPUs")
    probe = ray.remote(num_cpus=1, num_gpus=1 if config.train.use_gpu else 0)(resolve_dtype)
    resolved: tuple[str, str] = ray.get(probe.remote(dtype, device))
    return resolved


def _fit(
    config: RunConfig,
    making: Building,
    dataset: Folder,
    corpus: Folder,
    negatives: Folder | None,
    dtype: str,
    tracker: TrackerHandle | None,
) -> Artifact:
    import ray
    from ray.train import CheckpointConfig, FailureConfig, ScalingConfig
    from ray.train import RunConfig as TrainRun
    from ray.train.torch import TorchConfig, TorchTrainer

    settings = config.train
    state = Folder(f"{making.folder.url.rstrip('/')}.training")
    gpus = 1 if settings.use_gpu else 0
    _check_resources(config)
    with TrainingView(config.train) as view:
        trainer = TorchTrainer(
            train_worker,
            train_loop_config={
                "config": config.model_dump(mode="json"),
                "dataset": dataset.url,
                "corpus": corpus.url,
                "negatives": negatives.url if negatives is not None else None,
                "output": making.folder.url,
                "dtype": dtype,
                "tracker": tracker,
                "view": view.actor,
                "warmup": warmup_folder(config, making.identity).url,
            },
            torch_config=TorchConfig(backend="nccl" if settings.use_gpu else "gloo"),
            scaling_config=ScalingConfig(
                num_workers=settings.num_workers,
                use_gpu=settings.use_gpu,
                resources_per_worker={"CPU": settings.cpus_per_worker} | ({"GPU": gpus} if gpus else {}),
            ),
            run_config=TrainRun(
                # The same name makes Ray Train go on from the last checkpoint of an interrupted run.
                name=making.identity.fingerprint,
                storage_path=state.root if state.is_local else state.url,
                failure_config=FailureConfig(max_failures=settings.max_failures),
                checkpoint_config=CheckpointConfig(num_to_keep=2),
            ),
        )
        try:
            result = trainer.fit()
        except ray.train.TrainingFailedError as error:
            raise TrainingError(
                f"training broke off: {root_cause(error)}. Checkpoints are in {state}; the same command goes on from "
                "the last one"
            ) from error
    outcome: dict[str, Any] = result.return_value
    if "error" in outcome:
        raise TrainingError(outcome["error"])
    for name in making.folder.files():
        if not name.startswith((".done/", "plan.json")) and name not in making.done:
            making.record(
                name, {"rows": 0, "bytes": making.folder.size(name), "checksum": making.folder.checksum(name)}
            )
    info = {key: outcome[key] for key in ("history", "detections", "best_epoch", "num_examples", "num_steps", "dim")}
    info |= {"dtype": dtype, "world_size": outcome["world_size"], "weights": fingerprint_of(outcome["weights"])}
    artifact = making.finish(info, config.model_dump(mode="json"))
    state.remove()
    _show(artifact)
    return artifact


def warmup_folder(config: RunConfig, identity: Identity) -> Folder:
    """Where trainings that begin with the same epochs of plain NCE share the state after them."""
    shared = identity.model_dump()
    for setting in _AFTER_WARMUP:
        del shared["config"]["train"][setting]
    return Folder(config.workdir).absolute() / "warmups" / fingerprint_of(shared)


def _check_resources(config: RunConfig) -> None:
    import ray

    settings = config.train
    fewest = settings.num_workers if isinstance(settings.num_workers, int) else settings.num_workers[0]
    available = ray.cluster_resources()
    asked = {"CPU": fewest * settings.cpus_per_worker, "GPU": fewest if settings.use_gpu else 0}
    for kind, amount in asked.items():
        if amount > available.get(kind, 0):
            say(
                f"training asks for {amount:g} {kind}, Ray has {available.get(kind, 0):g} now: waiting for the "
                "autoscaler; on a single machine set train.num_workers or train.cpus_per_worker lower"
            )


def root_cause(error: BaseException) -> str:
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [line for line in str(cause).splitlines() if line.strip()]
    return lines[-1] if lines else repr(cause)


def _show(artifact: Artifact) -> None:
    history = artifact.info["history"]
    names = sorted({name for row in history for name in row["metrics"]} - {"filled", "grad_norm", "seconds"})
    show_table(
        f"Training: {artifact.info['num_examples']:,} queries, {artifact.info['num_steps']} steps an epoch"
        + (f", best epoch {artifact.info['best_epoch'] + 1}" if artifact.info["best_epoch"] is not None else ""),
        ["epoch", *names],
        (
            # A metric that a loss has only after its warm-up is left blank before.
            [row["epoch"] + 1, *(f"{row['metrics'][name]:.4f}" if name in row["metrics"] else "" for name in names)]
            for row in history
        ),
    )
    say(f"model: {artifact.folder}")


def save_untrained(config: RunConfig, output: Folder, overwrite: bool = False) -> Artifact:
    """The starting checkpoint as a ``model`` artefact, to compare with."""
    from raydr.models.dual_encoder import DualEncoder, build_tokenizers

    identity = Identity(
        kind="model",
        version=VERSION,
        config={
            "model": config.model.model_dump(mode="json", exclude={"checkpoint", "passage_checkpoint"}),
            "seed": config.seed,
            "trained": False,
        },
        inputs={"checkpoint": checkpoint_fingerprint(config.model)},
    )
    with begin(output, identity, overwrite) as making:
        if isinstance(making, Artifact):
            say(f"untrained model {output}: reused")
            return making
        model = DualEncoder.from_config(config.model, config.seed)
        publish_files(making.folder, lambda path: model.save(path, build_tokenizers(config.model)))
        for name in making.folder.files():
            if name != "plan.json":
                making.record(
                    name, {"rows": 0, "bytes": making.folder.size(name), "checksum": making.folder.checksum(name)}
                )
        return making.finish({"dim": model.dim}, config.model_dump(mode="json"))


def _epoch_name(epochs: int) -> str:
    return f"epoch-{epochs}"


def _copy(source: Path, target: Folder) -> None:
    """Files of a state, the progress last: its presence says that the state is whole."""
    for file in sorted(source.iterdir(), key=lambda path: path.name == PROGRESS):
        with target.publish(file.name) as path:
            shutil.copyfile(file, path)


def publish_files(folder: Folder, save: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory(prefix="raydr-model-") as scratch:
        save(Path(scratch))
        for file in sorted(path for path in Path(scratch).rglob("*") if path.is_file()):
            name = file.relative_to(scratch).as_posix()
            with folder.publish(name) as target:
                Path(target).write_bytes(file.read_bytes())


def train_worker(arguments: dict[str, Any]) -> dict[str, Any]:
    """What each Ray Train worker runs; returns the outcome, or an error that must not be retried."""
    import ray.train

    handle = arguments["tracker"]
    rank = ray.train.get_context().get_world_rank()
    with handle.open() if handle is not None and rank == 0 else nullcontext() as tracker:
        return _train(arguments, _RayListener(tracker, arguments["view"], rank, Folder(arguments["output"])))


def _train(arguments: dict[str, Any], listener: _RayListener) -> dict[str, Any]:
    import ray.train
    import torch
    from ray.train.torch import get_device, prepare_model

    from raydr.models.dual_encoder import DualEncoder, build_tokenizers
    from raydr.models.precision import torch_dtype
    from raydr.training.run import TrainingInputs, build_setup
    from raydr.training.trainer import Trainer

    config = RunConfig.parse(arguments["config"])
    context = ray.train.get_context()
    if not config.train.use_gpu:
        torch.set_num_threads(max(1, int(config.train.cpus_per_worker)))
    data = Dataset.open(arguments["dataset"])
    tokenizers = build_tokenizers(config.model)
    model = DualEncoder.from_config(config.model, config.seed).to(get_device())
    inputs = TrainingInputs(
        corpus=Corpus.open(arguments["corpus"]),
        train=_tables(data, config.data.train_split, arguments["negatives"]),
        dev=_tables(data, config.data.dev_split, arguments["negatives"])
        if config.data.dev_split in data.splits
        else None,
    )
    setup = build_setup(
        config.train,
        config.seed,
        model,
        tokenizers,
        inputs,
        torch_dtype(arguments["dtype"]),
        listener,
        wrap=prepare_model,
    )
    listener.query_ids = setup.batches.examples.query_ids
    trainer = Trainer(setup)
    warmup = Folder(arguments["warmup"])
    listener.share(warmup, config.train.loss.num_warmup_epochs or config.train.share_warmup or 0)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            trainer.resume(Path(folder))
        listener.tell(f"going on from epoch {trainer.progress.epoch + 1}, step {trainer.progress.step}")
    elif (epochs := config.train.loss.num_warmup_epochs) and (warmup / _epoch_name(epochs)).exists(PROGRESS):
        trainer.resume(Path((warmup / _epoch_name(epochs)).localize("")))
        listener.tell(f"the first {epochs} epochs of plain NCE are there from another training: going on from them")
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


def _tables(data: Dataset, split: str, negatives: str | None) -> tuple[pa.Table, pa.Table, pa.Table]:
    mined = data.negatives(split)
    if negatives is not None:
        mined = read_split(Artifact.open(negatives, "negatives"), "negatives", split)
    return data.queries(split), data.qrels(split), mined


class _RayListener:
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
        import ray.train

        finished_epoch = progress.step == 0
        metrics = dict(progress.history[-1].metrics) if finished_epoch and progress.history else {}
        if self.rank == 0 and metrics:
            self.view.epoch.remote(progress.epoch, metrics)
            if self.tracker is not None:
                self.tracker.log_metrics({f"epoch/{key}": value for key, value in metrics.items()}, progress.epoch)
        report = {"epoch": progress.epoch, "step": progress.step, "global_step": progress.global_step, **metrics}
        if self.rank:
            ray.train.report(report)
            return
        with tempfile.TemporaryDirectory(prefix="raydr-state-") as scratch:
            save(Path(scratch))
            shared = finished_epoch and progress.epoch == self.shared_epoch
            if shared and self.warmup is not None and not self.warmup.exists(PROGRESS):
                _copy(Path(scratch), self.warmup)
            ray.train.report(report, checkpoint=ray.train.Checkpoint.from_directory(scratch))
