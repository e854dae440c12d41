"""Models: trained retrievers, the starting checkpoint as it is, cross-encoders."""

from __future__ import annotations

from typing import Any

from raydr.graph.declaring import Declaring, trainers
from raydr.graph.node import Node
from raydr.graph.nodes import data
from raydr.graph.places import WARMUPS
from raydr.models.config import ModelConfig
from raydr.noise.judge_models import ClassifierConfig
from raydr.stages.train_progress import Watcher
from raydr.training.config import NEUTRAL
from raydr.training.training import Training


def training_of(run: Declaring) -> Training:
    """What a training of the config depends on, its arithmetic resolved."""
    config = run.config
    dtype = run.facts.training_dtype(config.train, config.train.dtype)
    return Training(
        model=config.model,
        train=config.train.model_copy(update={"dtype": dtype}),
        train_split=config.data.train_split,
        dev_split=config.data.dev_split,
        seed=config.seed,
    )


def trained(
    run: Declaring,
    name: str,
    training: Training,
    pairs: Node,
    negatives: Node | None,
    start: Node | None = None,
    after: tuple[Node, ...] = (),
    watcher: Watcher | None = None,
) -> Node:
    """A trained dual encoder.

    Args:
        run: the config.
        name: what the model is called.
        training: how it is trained.
        pairs: the data set with the pairs that it is trained on.
        negatives: mined candidates; those that came with the data if None.
        start: the model that it goes on from; ``model.checkpoint`` if None.
        after: what must have ended before.
        watcher: whom it tells how far it is; the console if None.
    """
    from raydr.stages.train import VERSION, train

    inputs = {"dataset": pairs, "corpus": data.corpus(run)}
    inputs |= {role: node for role, node in (("negatives", negatives), ("start", start)) if node is not None}
    warmups = run.facts.places.root / WARMUPS
    epochs = training.train.num_epochs
    return Node(
        "model",
        run.label("train", name),
        lambda work: train(
            work.making,
            work.pool,
            work["dataset"],
            work["corpus"],
            work.get("negatives"),
            work.get("start"),
            training=training,
            tracker=work.tracker.handle(),
            warmups=warmups,
            watcher=watcher,
        ),
        training_settings(training) | ({"checkpoint": run.facts.checkpoint(training.model)} if start is None else {}),
        inputs,
        VERSION,
        num_rows=lambda inputs: epochs * inputs["dataset"].rows(f"qrels/{training.train_split}"),
        unit="pairs",
        asks_model=True,
        demand=trainers(run.config),
        after=after,
    )


def training_settings(training: Training) -> dict[str, Any]:
    """The settings that a trained model depends on, besides what it is trained on and starts from."""
    settings = training.model_dump(mode="json", exclude={"model": _checkpoints(), "train": NEUTRAL})
    # Resolved, so that what computes it is content although the setting ``auto`` is not.
    settings["train"]["dtype"] = training.train.dtype
    return settings


def _checkpoints() -> set[str]:
    return {"checkpoint", "passage_checkpoint"}


def untrained(run: Declaring, model: ModelConfig, name: str) -> Node:
    """A starting checkpoint as it is, to compare with or to ask."""
    from raydr.stages.train import VERSION, save_untrained

    seed = run.config.seed
    return Node(
        "model",
        name,
        lambda work: save_untrained(work.making, work.pool, model=model, seed=seed),
        {
            "model": model.model_dump(mode="json", exclude=_checkpoints()),
            "checkpoint": run.facts.checkpoint(model),
            "seed": seed,
            "trained": False,
        },
        version=VERSION,
    )


def cross_encoder(run: Declaring, settings: ClassifierConfig, negatives: Node | None) -> Node:
    """A cross-encoder trained on the pairs and their candidates; the checkpoint as it is with ``num_epochs`` 0.

    Args:
        run: the config.
        settings: how it is trained.
        negatives: the candidates; None if it learns from random passages alone.
    """
    from raydr.stages.train_classifier import VERSION, save_cross_encoder, train_classifier

    config, split, label = run.config, run.config.data.train_split, run.label("cross-encoder")
    start = {"checkpoint": run.facts.cross_encoder_checkpoint(settings.model)}
    if not settings.num_epochs:
        return Node(
            "cross_encoder",
            label,
            lambda work: save_cross_encoder(work.making, work.pool, model=settings.model),
            {"model": settings.model.model_dump(mode="json", exclude={"checkpoint"}), "trained": False} | start,
            version=VERSION,
        )
    settings = settings.model_copy(update={"dtype": run.facts.training_dtype(config.train, settings.dtype)})
    inputs = {"dataset": data.dataset(run), "corpus": data.corpus(run)}
    return Node(
        "cross_encoder",
        label,
        lambda work: train_classifier(
            work.making,
            work.pool,
            work["dataset"],
            work["corpus"],
            work.get("negatives"),
            settings=settings,
            workers=config.train,
            split=split,
            seed=config.seed,
        ),
        settings.model_dump(mode="json", exclude={"model": {"checkpoint"}})
        | {"split": split, "seed": config.seed}
        | start,
        inputs | ({"negatives": negatives} if negatives is not None and settings.num_hard_negatives else {}),
        VERSION,
        num_rows=lambda inputs: settings.num_epochs * inputs["dataset"].rows(f"qrels/{split}"),
        unit="pairs",
        asks_model=True,
        demand=trainers(run.config),
    )
