"""Models: trained retrievers, the starting checkpoint as it is, cross-encoders."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from raydr.errors import ConfigError
from raydr.losses.nce import NCE
from raydr.models.config import ModelConfig
from raydr.models.cross_encoder_training import CrossEncoderTraining
from raydr.stages import encode
from raydr.stages import prepare as data
from raydr.stages.context import Declaring, trainers
from raydr.stages.declaration import Node, stage
from raydr.stages.train import VERSION, save_untrained, train
from raydr.stages.train_progress import Watcher
from raydr.store.artifact import Artifact
from raydr.training.config import NEUTRAL, TeacherConfig, TrainConfig
from raydr.training.training import Extras, Training


def trained(
    run: Declaring,
    name: str,
    training: Training,
    pairs: Node,
    extras: Extras[Node],
    after: tuple[Node, ...] = (),
    watcher: Watcher | None = None,
) -> Node:
    """A trained dual encoder.

    Args:
        run: the config.
        name: what the model is called.
        training: how it is trained.
        pairs: the data set with the pairs that it is trained on.
        extras: what else it reads; the guide's vectors are added here.
        after: what must have ended before.
        watcher: whom it tells how far it is; the console if None.

    Raises:
        ConfigError: the loss learns from a ranker, and there are no scores of one.
    """
    if training.train.loss.reads_ranker_scores and extras.ranker_scores is None:
        raise ConfigError(
            f"the loss {training.train.loss.name!r} learns from a ranker, and none is asked here: take nce, or rcl"
        )
    if training.train.guide is not None:
        extras = _guided(run, extras, training.train_split)
    label, warmup = run.label("train", name), None
    for epochs in training.train.shared_epochs:
        warmup = _training(run, label, training, pairs, extras, watcher=watcher, warmup=warmup, until=epochs)
    return _training(run, label, training, pairs, extras, after, watcher, warmup)


def _training(
    run: Declaring,
    label: str,
    training: Training,
    pairs: Node,
    extras: Extras[Node],
    after: tuple[Node, ...] = (),
    watcher: Watcher | None = None,
    warmup: Node | None = None,
    until: int | None = None,
) -> Node:
    """A model, or the state after its first epochs.

    Args:
        run, training, pairs, extras, after, watcher: as of :func:`trained`.
        label: what the model is called.
        warmup: the state that it goes on from; it changes nothing but the time, so that it is no input.
        until: epochs of plain NCE after which the state is what is made; None for the model.
    """
    if until is not None:
        plain = {"loss": NCE(), "teacher": TeacherConfig().resolved(asked=False), "pair_detection": None}
        train_config = training.train.model_copy(update=plain)
        training = training.model_copy(update={"train": train_config, "keep_optimizer": False})
        extras = replace(extras, margins=None, ranker_scores=None)
    also, num_epochs = extras.there(), until or training.train.num_epochs

    def state() -> Artifact | None:
        return None if warmup is None else Artifact.open(run.facts.places.folder(warmup.kind, warmup.key), warmup.kind)

    return Node(
        "model" if until is None else "warmup",
        label if until is None else f"{label}-warm-up-{until}",
        lambda work: train(
            work.making,
            work.pool,
            work["dataset"],
            work["corpus"],
            Extras(**{role: work[role] for role in also}),
            training=training,
            tracker=work.tracker.handle(),
            warmup=state(),
            until=until,
            watcher=watcher,
        ),
        training_settings(training)
        | ({} if extras.start else {"checkpoint": run.facts.checkpoint(training.model)})
        | ({} if until is None else {"until": until}),
        {"dataset": pairs, "corpus": data.corpus(run), **also},
        VERSION,
        num_rows=lambda inputs: num_epochs * inputs["dataset"].rows(f"qrels/{training.train_split}"),
        asks_model=True,
        demand=trainers(run.config),
        after=after if warmup is None else (*after, warmup),
    )


def _guided(run: Declaring, extras: Extras[Node], split: str) -> Extras[Node]:
    """With the guide's vectors of the split's queries and of the corpus."""
    asked = run.config.judge.guide
    if asked.score.passage_vectors.several:
        raise ConfigError(f"train.guide needs one vector a text: judge.guide.score is {asked.score.name!r}, take dual")
    own = run.of(run.config.model_copy(update={"model": asked}))
    guide = untrained(own, own.config.model, "guide")
    queries = encode.queries(own, guide, "guide", split)
    return replace(extras, guide_queries=queries, guide_passages=encode.passages(own, guide, "guide"))


def training_settings(training: Training) -> dict[str, Any]:
    """The settings that a trained model depends on, besides what it is trained on and starts from."""
    # Where the loss reads a ranker's scores, these are an input, or the ranker is.
    taught = {"ranker": True, "ranker_scores": True}
    settings = training.model_dump(mode="json", exclude={"model": _checkpoints(), "train": {**NEUTRAL, **taught}})
    # Resolved, so that what computes it is content although the setting ``auto`` is not.
    settings["train"]["dtype"] = training.train.dtype
    settings |= _best_from(training.train, training.dev_split if training.train.keep == "best" else "")
    if not training.train.num_hard_negatives:
        # Nothing is drawn from partitions.
        del settings["scope"]
    return settings


def _best_from(training: TrainConfig | CrossEncoderTraining, chosen_on: str) -> dict[str, int]:
    """The first epoch that may become the model, where dev queries choose it and it is not the first of all."""
    first = training.loss.first_own_epoch(training.num_epochs) if chosen_on else 0
    return {"best_epoch_from": first} if first else {}


def _checkpoints() -> set[str]:
    return {"checkpoint", "passage_checkpoint"}


def untrained(run: Declaring, model: ModelConfig, name: str) -> Node:
    """A starting checkpoint as it is, to compare with or to ask."""
    seed = run.config.seed
    return Node(
        "model",
        name,
        stage(partial(save_untrained, model=model, seed=seed)),
        {
            "model": model.model_dump(mode="json", exclude=_checkpoints()),
            "checkpoint": run.facts.checkpoint(model),
            "seed": seed,
            "trained": False,
        },
        version=VERSION,
    )


def cross_encoder(
    run: Declaring,
    settings: CrossEncoderTraining,
    negatives: Node | None,
    pairs: Node | None = None,
    start: Node | None = None,
    name: str = "cross-encoder",
    dev_run: Node | None = None,
) -> Node:
    """A cross-encoder trained on the pairs and their candidates; the checkpoint as it is with ``num_epochs`` 0.

    Args:
        run: the config.
        settings: how it is trained.
        negatives: the candidates; None if it learns from random passages, or from what came with the data, alone.
        pairs: the data set with the pairs that it is trained on; the run's if None.
        start: the cross-encoder that it goes on from; ``model.checkpoint`` of the settings if None.
        name: what it is called.
        dev_run: over the dev split, which it orders after each epoch; None if the last epoch is kept.
    """
    from raydr.stages.train_cross_encoder import VERSION, save_cross_encoder, train_cross_encoder

    config, split, label = run.config, run.config.data.train_split, run.label(name)
    origin = {"checkpoint": run.facts.cross_encoder_checkpoint(settings.model)} if start is None else {}
    if not settings.num_epochs and start is not None:
        return start
    if not settings.num_epochs:
        return Node(
            "cross_encoder",
            label,
            stage(partial(save_cross_encoder, settings=settings)),
            {
                "model": settings.model.model_dump(mode="json", exclude={"checkpoint"}),
                "predicts": settings.predicts,
                "trained": False,
            }
            | origin,
            version=VERSION,
        )
    settings = settings.model_copy(update={"dtype": run.facts.training_dtype(config.train, settings.dtype)})
    inputs = {"dataset": pairs or data.dataset(run), "corpus": data.corpus(run)}
    if negatives is not None and settings.num_hard_negatives:
        inputs["negatives"] = negatives
    if start is not None:
        inputs["start"] = start
    dev: dict[str, Any] = {} if dev_run is None else {"dev_split": config.data.dev_split}
    dev |= _best_from(settings, config.data.dev_split if dev_run is not None else "")
    if dev_run is not None:
        inputs["dev_run"] = dev_run
    return Node(
        "cross_encoder",
        label,
        stage(
            partial(
                train_cross_encoder,
                settings=settings,
                workers=config.train,
                split=split,
                seed=config.seed,
                scope=config.partition.negatives,
                dev=config.data.dev_split,
            ),
            *("dataset", "corpus", "negatives", "start", "dev_run"),
        ),
        settings.model_dump(mode="json", exclude={"model": {"checkpoint"}, "num_folds": True, "pairs_kept_by": True})
        | {"predicts": settings.predicts, "split": split, "seed": config.seed, "scope": config.partition.negatives}
        | dev
        | origin,
        inputs,
        VERSION,
        num_rows=lambda inputs: settings.num_epochs * inputs["dataset"].rows(f"qrels/{split}"),
        asks_model=True,
        demand=trainers(run.config),
    )
