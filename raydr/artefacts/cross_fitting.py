"""Nodes of cross-fitting: folds of a split, a training without each fold, and the margins of all pairs."""

from __future__ import annotations

from typing import Any

from raydr.artefacts import Context, Node, artefact, trainers
from raydr.artefacts.dataset import declare_corpus, declare_data
from raydr.artefacts.folds import cut_folds, leave_fold_out
from raydr.artefacts.margins import measure_folds
from raydr.artefacts.model import num_learnt, train, untrained
from raydr.artefacts.ranker import cross_encoder
from raydr.console import say
from raydr.distributed.pool import Pool
from raydr.errors import DataError
from raydr.losses.nce import NCE
from raydr.noise.judge_models import ClassifierConfig
from raydr.noise.margins import CrossFitConfig
from raydr.store import Artifact, Building
from raydr.tracking.tracker import Tracker
from raydr.training.sections import DevConfig
from raydr.training.training import Training

#: Role of the judging model.
MODEL = "model"
#: Kind and role of cross-fitted margins.
MARGINS = "margins"
#: Kind and role of the assignment of queries to folds.
FOLDS = "folds"


def margins(context: Context, split: str) -> Node:
    """Return the node of the margins of a split's pairs, each by a model that was not trained on its query.

    The models of the training split also measure a split that is held out of it.

    Args:
        context: config; ``cross_fit``, ``model`` and ``train`` determine the models.
        split: measured split.
    """
    config, settings = context.config, context.config.cross_fit
    learnt = config.data.train_split if split in config.data.hold_out else split
    cut = _folds(context, learnt, settings.num_folds, _seed(context))
    return measure_folds.node(
        f"{context.place}margins-{split}",
        **declare_data(context),
        folds=cut,
        models={str(fold): _trained(context, cut, learnt, fold) for fold in range(settings.num_folds)},
        split=split,
        num_random=settings.num_random,
        num_draws=settings.num_draws,
        seed=_seed(context),
        **context.scoring(),
    )


def cross_encoders(
    context: Context, settings: ClassifierConfig, negatives: Node | None, pairs: Node | None
) -> dict[str, Node | dict[str, Node]]:
    """Return the folds of the training split, and a cross-encoder without each fold, by role.

    Args:
        context: config and facts.
        settings: training of the cross-encoders, and number of folds.
        negatives: candidates of the whole split to learn from.
        pairs: data set with the pairs to learn from; that of the run if None. Folds cover all pairs.
    """
    split = context.config.data.train_split
    cut = _folds(context, split, settings.num_folds, context.config.seed)
    trained = {
        str(fold): cross_encoder(
            context, settings, negatives, _left_out(context, cut, split, fold, pairs), name=f"cross-encoder-{fold + 1}"
        )
        for fold in range(settings.num_folds)
    }
    return {FOLDS: cut, "models": trained}


def margins_of(context: Context, training: Training) -> Node | None:
    """Return the node of the margins that a training reads; None without detection by margins."""
    return margins(context, training.train_split) if training.train.reads_margins else None


def _settings(context: Context) -> CrossFitConfig:
    return context.config.cross_fit.resolved(context.config.model)


def _seed(context: Context) -> int:
    own = context.config.cross_fit.seed
    return context.config.seed if own is None else own


def _folds(context: Context, split: str, num_folds: int, seed: int) -> Node:
    label = f"{context.place}folds-{split}"
    return cut_folds.node(label, **declare_data(context), split=split, num_folds=num_folds, seed=seed)


def _left_out(context: Context, cut: Node, split: str, fold: int, kept: Node | None = None) -> Node:
    """Return the node of the pairs outside a fold, optionally only those of the data set ``kept``."""
    label, dataset, corpus = f"{context.place}cross-fit-pairs-{fold + 1}", cut.inputs["dataset"], cut.inputs["corpus"]
    return leave_fold_out.node(label, dataset=dataset, corpus=corpus, folds=cut, kept=kept, split=split, fold=fold)


def _training(context: Context, split: str) -> Training:
    """Return the training of a fold: that of the run with plain NCE, without the settings of methods."""
    settings = _settings(context)
    changes: dict[str, Any] = {
        "loss": NCE(),
        "pair_detection": None,
        "coteaching": None,
        "guide": None,
        "dev": DevConfig(),
        "num_epochs": settings.num_epochs,
        "num_hard_negatives": 0,
        "in_batch_negatives": True,
        "share_warmup": None,
        "keep": "last",
    }
    if settings.batch_size is not None:
        changes["batch_size"] = settings.batch_size
    if settings.optimizer is not None:
        changes["optimizer"] = settings.optimizer
    changed = context.training().model_copy(update={"model": settings.model}).changed({}, changes, "cross_fit")
    return changed.model_copy(update={"train_split": split, "seed": _seed(context)})


def _trained(context: Context, cut: Node, split: str, fold: int) -> Node:
    """Return the node of the model that was not trained on a fold."""
    settings = _settings(context)
    if not settings.num_epochs:
        assert settings.model is not None
        return untrained(context, settings.model, f"{context.place}margins-checkpoint")
    training = _training(context, split)
    return train_fold.node(
        f"{context.place}cross-fit-train-{fold + 1}",
        dataset=_left_out(context, cut, split, fold),
        corpus=declare_corpus(context),
        training=training.model_copy(update={"scope": "own"}),
        checkpoint=context.facts.checkpoint(training.model),
        demand=trainers(context.config),
    )


@artefact("model", version=2, rows=num_learnt, asks_model=True)
def train_fold(
    making: Building,
    pool: Pool,
    tracker: Tracker,
    dataset: Artifact,
    corpus: Artifact,
    *,
    training: Training,
    checkpoint: str = "",
) -> dict[str, Any]:
    """Train on the pairs outside a fold, in smaller batches if they are fewer than a batch.

    Args:
        making, pool, dataset, corpus, training: as in :func:`raydr.artefacts.model.train`.
        tracker: tracker of its step in MLflow.
        checkpoint: checksum of the starting checkpoint.

    Raises:
        DataError: there are too few pairs for a small batch.
    """
    num_queries, batch_size = dataset.info["num_queries"], training.train.batch_size
    if num_queries < batch_size:
        training = _in_small_batches(training, num_queries)
        say(f"cross-fit: batches of {training.train.batch_size} in place of {batch_size}: a fold leaves {num_queries}")
    return train(making, pool, tracker, dataset, corpus, training=training)


def _in_small_batches(training: Training, num_queries: int) -> Training:
    settings = training.train
    most = settings.num_workers if isinstance(settings.num_workers, int) else settings.num_workers[1]
    whole = most * settings.accumulation_steps
    batch_size = num_queries // whole * whole
    if batch_size < 2 * whole:
        raise DataError(
            f"a fold leaves {num_queries} queries to train on, and {2 * whole} are needed: these are too few pairs, "
            "bring more; or set cross_fit.num_epochs=0 (--quick), so that the checkpoint measures them"
        )
    return training.model_copy(update={"train": settings.model_copy(update={"batch_size": batch_size})})
