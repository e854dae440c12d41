"""Cross-fitting: folds of a split's pairs, trainings without each, and what the pairs left out are measured by."""

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

#: The role of the model that is asked.
MODEL = "model"
#: The kind of cross-fitted margins, and the role of those that read them.
MARGINS = "margins"
#: The kind of an assignment of queries to folds, and the role of those that read it.
FOLDS = "folds"


def margins(context: Context, split: str) -> Node:
    """Declare the margins of all pairs of a split, each by a model that has not seen its query, and of random pairs.

    The models of the training split's folds measure a split that is held out of it.

    Args:
        context: the config, whose sections ``cross_fit``, ``model`` and ``train`` say how the models are trained.
        split: the split.
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
    """Declare the folds of the training split, and a cross-encoder without each, by role.

    Args:
        context: the config.
        settings: how they are trained, and how many.
        negatives: candidates that they learn from, those of the whole split.
        pairs: the data set with the pairs that they learn from; the run's if None. All are cut into folds.
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
    """Declare the margins that a training's detection reads; None if it reads none."""
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
    """Declare the pairs of the other folds, of all or of a data set that has some of them."""
    label, dataset, corpus = f"{context.place}cross-fit-pairs-{fold + 1}", cut.inputs["dataset"], cut.inputs["corpus"]
    return leave_fold_out.node(label, dataset=dataset, corpus=corpus, folds=cut, kept=kept, split=split, fold=fold)


def _training(context: Context, split: str) -> Training:
    """Return the run's training in small: loss, detection and negatives of a fold depend on no method."""
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
    """Declare the model that has not seen a fold."""
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
    """Train on what :func:`raydr.artefacts.folds.leave_fold_out` has left, in smaller batches where a batch holds more.

    Args:
        making, pool, dataset, corpus, training: as :func:`raydr.artefacts.model.train` takes them.
        tracker: its step in MLflow.
        checkpoint: checksum of what the model starts from.

    Raises:
        DataError: not even one small batch is left.
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
