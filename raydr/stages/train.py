"""Training on Ray Train, and the finished model as an artefact."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from raydr.config.run import RunConfig
from raydr.data.dataset import Dataset
from raydr.errors import ArtifactError, ConfigError, DataError
from raydr.evaluation.metrics import parse_measures
from raydr.models.checkpoint import checkpoint_fingerprint
from raydr.runtime.console import say, show_table, warn
from raydr.stages.lone_worker import Alone, run_alone
from raydr.stages.train_progress import TrainingView, Watcher
from raydr.stages.train_worker import train_worker, worker_arguments
from raydr.stages.worker_group import checkpoint_folder, run_worker_group, training_dtype
from raydr.store.artifact import Artifact, Building, Identity, begin, fingerprint_of
from raydr.store.folder import Folder, publish_files
from raydr.training.advice import training_advice
from raydr.training.checkpoint import OPTIMIZER
from raydr.training.config import NEUTRAL, TrainConfig

if TYPE_CHECKING:
    from raydr.runtime.tracking import TrackerHandle

#: Raised when training gives another model for the same config.
VERSION = 1

#: Settings of training that play no part before a loss's warm-up is over.
_AFTER_WARMUP = {"loss", "teacher", "pair_detection"}


@dataclass(frozen=True)
class Start:
    """A model that training goes on from, in place of ``model.checkpoint``.

    Args:
        model: a ``model`` artefact on any file system.
        with_optimizer: take up the moments of the optimiser that were kept with it.
    """

    model: Folder
    with_optimizer: bool = False


def train(
    config: RunConfig,
    dataset: Folder,
    corpus: Folder,
    output: Folder,
    negatives: Folder | None = None,
    tracker: TrackerHandle | None = None,
    overwrite: bool = False,
    *,
    start: Start | None = None,
    keep_optimizer: bool = False,
    alone: Alone | None = None,
    watcher: Watcher | None = None,
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
        start: what to go on from; ``model.checkpoint`` if None.
        keep_optimizer: keep the optimiser's state after the last step with the model, for a training that goes on.
        alone: train in this process and not on Ray Train, with the same result; ``train.num_workers`` must be 1.
        watcher: whom the training tells how far it is; the console if None.

    Raises:
        ConfigError: ``train.dev.measure`` is no measure.
        DataError: the data set was prepared with another corpus, its dev split has no judgments, or the candidates are
            of another split.
        ArtifactError: no optimiser state was kept with the start.
        TrainingError: training broke off; the last checkpoint is kept and the same command goes on from it.
    """
    opened = Dataset.open(dataset)
    opened.require_corpus(Artifact.open(corpus, "corpus"))
    _check_dev(config, opened)
    inputs = {
        "dataset": opened.fingerprint,
        "corpus": opened.corpus_fingerprint,
        **_start_inputs(config, start),
    }
    if negatives is not None:
        mined = Artifact.open(negatives, "negatives")
        _check_negatives(config, mined)
        inputs["negatives"] = mined.fingerprint
    dtype, reason = _dtype_here(config.train) if alone is not None else training_dtype(config.train, config.train.dtype)
    settings = training_key(config)
    settings["train"] |= {"dtype": dtype}
    if start is not None and start.with_optimizer:
        settings["optimizer_state"] = "kept"
    if keep_optimizer:
        settings["keep_optimizer"] = True
    if alone is not None and alone.population:
        settings["population"] = True
    identity = Identity(kind="model", version=VERSION, config=settings, inputs=inputs)
    with begin(output, identity, overwrite) as making:
        if isinstance(making, Artifact):
            say(f"model {output}: already trained with these settings, reused")
            return making
        say(f"training in {dtype}: {reason}")
        # What goes on from a trained model follows settings that were shown before, or the sieve's own.
        if start is None:
            for advice in training_advice(config.train, config.model, config.negatives):
                warn(advice)
        with nullcontext(watcher) if watcher is not None else TrainingView(config.train.num_epochs) as watching:
            arguments = worker_arguments(
                config,
                dataset,
                corpus,
                negatives,
                making.folder,
                dtype,
                tracker,
                watching,
                warmup_folder(config, identity),
                start,
                keep_optimizer,
            )
            run = partial(run_alone, how=alone) if alone is not None else run_worker_group
            outcome = run(train_worker, arguments, making, config.train, "the dual encoder")
        return _finish(config, making, dtype, outcome)


def _check_dev(config: RunConfig, data: Dataset) -> None:
    """What would otherwise come to light only when the first epoch is over."""
    parse_measures([config.train.dev.measure], "train.dev.measure")
    split = config.data.dev_split
    if split and split not in data.splits:
        warn(
            f"the data set at {data.artifact.folder} has no split {split!r} (it has {', '.join(data.splits)}): nothing "
            "is measured while training, and the last epoch is kept. Set data.dev_split to a split that it has, or to "
            "'' to say so"
        )
    if split in data.splits and not data.artifact.rows(f"qrels/{split}"):
        raise DataError(
            f"split {split!r} of the data set at {data.artifact.folder} has no judgments, so that no epoch can be "
            "measured on it: set data.dev_split to a split that has some, or to '' to train without"
        )


def _check_negatives(config: RunConfig, mined: Artifact) -> None:
    split = config.data.train_split
    if config.train.num_hard_negatives and not mined.parts(f"negatives/{split}"):
        others = sorted({name.split("/")[1] for name in mined.parts("negatives")})
        raise DataError(
            f"the candidates at {mined.folder} are of split {', '.join(others) or 'none'}, the training is on "
            f"{split!r}: mine those of {split!r}"
        )


def training_key(config: RunConfig) -> dict[str, Any]:
    """The settings that a trained model depends on, besides what it is trained on and starts from."""
    return {
        "model": config.model.fingerprint_settings(exclude={"checkpoint", "passage_checkpoint"}),
        "train": config.train.fingerprint_settings(exclude=NEUTRAL),
        "splits": [config.data.train_split, config.data.dev_split],
        "seed": config.seed,
    }


def _start_inputs(config: RunConfig, start: Start | None) -> dict[str, str]:
    if start is None:
        return {"checkpoint": checkpoint_fingerprint(config.model)}
    model = Artifact.open(start.model, "model")
    if start.with_optimizer and OPTIMIZER not in model.parts():
        raise ArtifactError(
            f"the model at {start.model} was saved without its optimiser's state: train it again and keep that, or "
            "start with a fresh optimiser"
        )
    return {"start": model.fingerprint}


def _dtype_here(settings: TrainConfig) -> tuple[str, str]:
    from raydr.models.precision import resolve_dtype

    if settings.num_workers != 1:
        raise ConfigError(f"one process cannot train as train.num_workers {settings.num_workers}: set it to 1")
    return resolve_dtype(settings.dtype, "cuda" if settings.use_gpu else "cpu")


def _finish(config: RunConfig, making: Building, dtype: str, outcome: dict[str, Any]) -> Artifact:
    making.record_files()
    info = {key: outcome[key] for key in ("history", "detections", "best_epoch", "num_examples", "num_steps", "dim")}
    info |= {"dtype": dtype, "world_size": outcome["world_size"], "weights": fingerprint_of(outcome["weights"])}
    artifact = making.finish(info, config.model_dump(mode="json"))
    checkpoint_folder(making.folder).remove()
    _show(artifact)
    return artifact


def warmup_folder(config: RunConfig, identity: Identity) -> Folder:
    """Where trainings that begin with the same epochs of plain NCE share the state after them."""
    shared = identity.model_dump()
    for setting in _AFTER_WARMUP:
        del shared["config"]["train"][setting]
    return Folder(config.workdir).absolute() / "warmups" / fingerprint_of(shared)


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
            "model": config.model.fingerprint_settings(exclude={"checkpoint", "passage_checkpoint"}),
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
        making.record_files()
        return making.finish({"dim": model.dim}, config.model_dump(mode="json"))
