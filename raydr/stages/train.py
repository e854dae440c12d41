"""Training of a retriever, and the finished model as an artefact.

Artefact ``model``: the files of the model, which ``sentence_transformers.SentenceTransformer(folder)`` opens, and::

    detection/epoch-*.parquet    (query_id, perplexity, random_pair, log_posterior, clean), where pairs are detected
    optimizer.pt                 the optimiser's moments, if they are kept

Artefact ``warmup``: the state of a training after epochs of plain NCE, which others go on from.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.errors import ArtifactError, DataError
from raydr.models.checkpoint_settings import replaced
from raydr.models.config import ModelConfig
from raydr.runtime.console import warn
from raydr.stages.pool import Pool
from raydr.stages.train_progress import Watcher, show_history, training_here, training_on_ray
from raydr.stages.train_worker import TrainingJob, train_worker
from raydr.stages.worker_group import run_workers, trains_here
from raydr.store.artifact import Artifact, Building
from raydr.store.folder import Folder, publish_files
from raydr.store.identity import fingerprint_of
from raydr.training.advice import training_advice
from raydr.training.checkpoint import OPTIMIZER
from raydr.training.training import Extras, Training

if TYPE_CHECKING:
    from raydr.runtime.tracking import TrackerHandle

#: Raised when training gives another model for the same config.
VERSION = 2


def train(
    making: Building,
    pool: Pool,
    dataset: Artifact,
    corpus: Artifact,
    extras: Extras[Artifact],
    *,
    training: Training,
    tracker: TrackerHandle | None,
    warmup: Artifact | None = None,
    until: int | None = None,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Train a dual encoder: in this process where that is the pool and one worker is asked for, else on Ray Train.

    Args:
        making: the ``model`` artefact, or the ``warmup``; checkpoints lie beside it until it is finished.
        pool: where it is trained.
        dataset: its training split is trained on, its dev split chooses the epoch.
        corpus: the corpus it was prepared with.
        extras: what else is read.
        training: the settings.
        tracker: where step and epoch metrics are logged.
        warmup: the state after epochs of plain NCE that it begins with; None if it trains them itself.
        until: epochs of a ``warmup`` that is made; None for a model.
        watcher: whom the training tells how far it is; the console if None.

    Raises:
        DataError: the data set was prepared with another corpus, its dev split has no judgments, or the candidates are
            of another split.
        ArtifactError: no optimiser state was kept with the start.
        TrainingError: training broke off; the last checkpoint is kept and the same command goes on from it.
    """
    data = Dataset(dataset)
    data.require_corpus(corpus)
    _check_dev(training, data)
    negatives, start = extras.negatives, extras.start
    _check_negatives(training, negatives)
    if training.with_optimizer and (start is None or OPTIMIZER not in start.parts()):
        raise ArtifactError(
            f"the model at {start.folder if start else training.model.checkpoint} was saved without its optimiser's "
            "state: train it again and keep that, or start with a fresh optimiser"
        )
    if start is None:
        _say_what_is_replaced(training.model)
    # What goes on from a trained model follows settings that were shown before, or the sieve's own.
    miner = negatives.info.get("miner") if negatives is not None else None
    for advice in training_advice(training, miner) if start is None and until is None else []:
        warn(advice)
    settings = training.train
    view = training_here if trains_here(pool, settings) else training_on_ray
    with nullcontext(watcher) if watcher is not None else view(settings.num_epochs) as watching:
        job = TrainingJob(training, data, Corpus(corpus), extras, making.folder, tracker, watching, warmup, until)
        outcome = run_workers(pool, train_worker, job, making, settings, "the dual encoder")
    making.record_files()
    info = {key: outcome[key] for key in ("history", "detections", "best_epoch", "num_examples", "num_steps", "dim")}
    info |= {"dtype": settings.dtype, "world_size": outcome["world_size"]}
    info["weights"] = fingerprint_of(outcome["weights"])
    _show(info)
    return info


def _say_what_is_replaced(model: ModelConfig) -> None:
    if line := replaced(model.model_dump()):
        warn(line)


def _check_dev(training: Training, data: Dataset) -> None:
    """What would otherwise come to light only when the first epoch is over."""
    split = training.dev_split
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


def _check_negatives(training: Training, mined: Artifact | None) -> None:
    split = training.train_split
    if mined is not None and training.train.num_hard_negatives and not mined.parts(f"negatives/{split}"):
        others = sorted({name.split("/")[1] for name in mined.parts("negatives")})
        raise DataError(
            f"the candidates at {mined.folder} are of split {', '.join(others) or 'none'}, the training is on "
            f"{split!r}: mine those of {split!r}"
        )


def _show(info: dict[str, Any]) -> None:
    best = f", best epoch {info['best_epoch'] + 1}" if info["best_epoch"] is not None else ""
    title = f"Training: {info['num_examples']:,} queries, {info['num_steps']} steps an epoch{best}"
    show_history(title, info["history"], hidden=("filled", "grad_norm", "seconds"))


def save_untrained(making: Building, pool: Pool, *, model: ModelConfig, seed: int) -> dict[str, Any]:
    """The starting checkpoint as a ``model`` artefact, to compare with.

    Args:
        making: the artefact.
        pool: where the checkpoint is loaded.
        model: the model.
        seed: draws weights that the checkpoint has not.
    """
    _say_what_is_replaced(model)
    dim: int = pool.run(_save_untrained, making.folder, model, seed)
    making.record_files()
    return {"dim": dim}


def _save_untrained(output: Folder, config: ModelConfig, seed: int) -> int:
    from raydr.models.dual_encoder import DualEncoder, build_tokenizers

    model = DualEncoder.from_config(config, seed)
    publish_files(output, lambda path: model.save(path, build_tokenizers(config)))
    return model.dim
