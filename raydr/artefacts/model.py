"""Training of a retriever, and the finished model as an artefact.

Artefact ``model``: the files of the model, which ``sentence_transformers.SentenceTransformer(folder)`` opens, and::

    detection/epoch-*.parquet    (query_id, margin, random_pair, log_posterior, clean), where pairs are detected
    optimizer.pt                 the optimiser's moments, if they are kept

Artefact ``warmup``: the state of a training after epochs of plain NCE, from which other trainings continue.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from raydr.artefacts import Context, Node, artefact, trainers
from raydr.artefacts import embeddings as encode
from raydr.artefacts.dataset import declare_corpus
from raydr.artefacts.train_progress import show_history, training_here, training_on_ray
from raydr.component import Neutral
from raydr.console import warn
from raydr.data import Corpus, Dataset
from raydr.distributed.pool import Pool
from raydr.distributed.worker_group import run_workers, trains_here
from raydr.errors import ConfigError
from raydr.losses.nce import NCE
from raydr.models.checkpoint_settings import replaced
from raydr.models.config import ModelConfig
from raydr.store import Artifact, Building, Folder
from raydr.store.folder import publish_files
from raydr.store.identity import fingerprint_of
from raydr.tracking.tracker import Tracker
from raydr.training.reports import Watcher
from raydr.training.training import OptionalInputs, Training, check_inputs, training_advice


def trained(
    context: Context,
    name: str,
    training: Training,
    pairs: Node,
    optional: OptionalInputs[Node],
    watcher: Watcher | None = None,
) -> Node:
    """Return the node of a trained dual encoder.

    Args:
        context: config and facts.
        name: name of the model.
        training: settings of the training.
        pairs: data set with the training pairs.
        optional: optional inputs; this function adds the guide's vectors.
        watcher: receiver of the progress; the console if None.

    Raises:
        ConfigError: the loss learns from a ranker, and its scores are missing.
    """
    settings = training.train
    if settings.loss.reads_ranker_scores and optional.ranker_scores is None:
        raise ConfigError(
            f"the loss {settings.loss.name!r} learns from a ranker, and none is asked here: take nce, or rcl"
        )
    if settings.guide is not None:
        optional = _guided(context, optional, training.train_split)
    if not settings.num_hard_negatives:
        # Partitions affect only drawn negatives.
        training = training.model_copy(update={"scope": "own"})
    label, warmup = context.label("train", name), None
    read: dict[str, Any]
    common: dict[str, Any] = {
        "dataset": pairs,
        "corpus": declare_corpus(context),
        "checkpoint": "" if optional.start else context.facts.checkpoint(training.model),
        "watcher": watcher,
        "demand": trainers(context.config),
    }
    for epochs in settings.shared_epochs:
        # Patience would end these epochs, and with them every training that continues.
        dev = settings.dev.model_copy(update={"patience": None})
        plain = settings.model_copy(update={"loss": NCE(), "pair_detection": None, "dev": dev}).resolved()
        own = training.model_copy(update={"train": plain, "keep_optimizer": False})
        read = dict(replace(optional, margins=None, ranker_scores=None).present())
        warmup = train_warmup.node(
            f"{label}-warm-up-{epochs}", **common, **read, training=own, until=epochs, **_after(context, warmup)
        )
    chosen = training.dev_split if settings.keep == "best" else ""
    first = settings.loss.first_own_epoch(settings.num_epochs) if chosen else 0
    read = dict(optional.present())
    return train_model.node(
        label, **common, **read, training=training, best_epoch_from=first, **_after(context, warmup)
    )


def _after(context: Context, warmup: Node | None) -> dict[str, Any]:
    """Return the arguments that start a training from a shared state; this saves time and is not part of the key."""
    if warmup is None:
        return {}
    folder = context.facts.places.folder(warmup.kind, warmup.key)
    return {"after": (warmup,), "warmup": partial(Artifact.open, folder, warmup.kind)}


def _guided(context: Context, optional: OptionalInputs[Node], split: str) -> OptionalInputs[Node]:
    """Add the guide's vectors of queries and passages."""
    asked = context.config.judge.guide
    if asked.score.passage_vectors.several:
        raise ConfigError(f"train.guide needs one vector a text: judge.guide.score is {asked.score.name!r}, take dual")
    own = context.of(context.config.model_copy(update={"model": asked}))
    guide = untrained(own, own.config.model, "guide")
    queries = encode.queries(own, guide, "guide", split)
    return replace(optional, guide_queries=queries, guide_passages=encode.passages(own, guide, "guide"))


def untrained(context: Context, model: ModelConfig, name: str) -> Node:
    """Return the node of an untrained checkpoint."""
    return save_untrained.node(name, model=model, checkpoint=context.facts.checkpoint(model), seed=context.config.seed)


def num_learnt(of: Any) -> int:
    """Return the number of queries that a training reads, over all epochs."""
    epochs = getattr(of, "until", None) or of.training.train.num_epochs
    return int(epochs * of.dataset.rows(f"qrels/{of.training.train_split}"))


def train(
    making: Building,
    pool: Pool,
    tracker: Tracker | None,
    dataset: Artifact,
    corpus: Artifact,
    negatives: Artifact | None = None,
    start: Artifact | None = None,
    ranker_scores: Artifact | None = None,
    margins: Artifact | None = None,
    dev_verdicts: Artifact | None = None,
    guide_queries: Artifact | None = None,
    guide_passages: Artifact | None = None,
    *,
    training: Training,
    checkpoint: str = "",
    best_epoch_from: int = 0,
    until: int | None = None,
    warmup: Annotated[Callable[[], Artifact] | None, Neutral] = None,
    watcher: Annotated[Watcher | None, Neutral] = None,
) -> dict[str, Any]:
    """Train a dual encoder, on Ray Train, or in this process for a small training with a single worker.

    Args:
        making: ``model`` or ``warmup`` artefact to make; checkpoints lie beside it until it is complete.
        pool: pool of the training.
        tracker: tracker of step and epoch metrics; None logs nothing.
        dataset: data set; its training split is learned, its dev split chooses the epoch.
        corpus: corpus of the data set.
        negatives, start, ranker_scores, margins, dev_verdicts, guide_queries, guide_passages: see
            :class:`OptionalInputs`.
        training: settings of the training.
        checkpoint: checksum of the starting checkpoint.
        best_epoch_from: first epoch that may become the model, by the loss.
        until: epochs of a ``warmup``; None for a model.
        warmup: function that opens a shared state after epochs of plain NCE; None trains these epochs here.
        watcher: receiver of the progress; the console if None.

    Raises:
        DataError: the data set belongs to another corpus, its dev split has no judgments, or the candidates belong to
            another split.
        ArtifactError: the start has no state of the optimiser.
        TrainingError: training was interrupted; the same command continues from the last checkpoint.
    """
    data = Dataset(dataset)
    data.require_corpus(corpus)
    optional = OptionalInputs(negatives, start, ranker_scores, margins, dev_verdicts, guide_queries, guide_passages)
    for line in check_inputs(training, data, optional):
        warn(line)
    if start is None:
        _say_what_is_replaced(training.model)
    # Advice on a later round, or on the sieve's own training, would repeat earlier advice.
    miner = negatives.info.get("miner") if negatives is not None else None
    for advice in training_advice(training, miner) if start is None and until is None else []:
        warn(advice)
    # Importing PyTorch takes seconds, also for a verb whose model exists.
    from raydr.training.run import TrainingJob, train_worker

    settings = training.train
    view = training_here if trains_here(pool, settings) else training_on_ray
    state, handle = None if warmup is None else warmup(), None if tracker is None else tracker.handle()
    with nullcontext(watcher) if watcher is not None else view(settings.num_epochs) as watching:
        job = TrainingJob(training, data, Corpus(corpus), optional, making.folder, watching, handle, state, until)
        outcome = run_workers(pool, train_worker, job, making, settings, "the dual encoder")
    making.record_files()
    info = {key: outcome[key] for key in ("history", "detections", "best_epoch", "num_examples", "num_steps", "dim")}
    info |= {"dtype": settings.dtype, "world_size": outcome["world_size"]}
    info["weights"] = fingerprint_of(outcome["weights"])
    _show(info)
    return info


train_model = artefact("model", version=3, rows=num_learnt, asks_model=True)(train)
train_warmup = artefact("warmup", version=2, rows=num_learnt, asks_model=True)(train)


def _say_what_is_replaced(model: ModelConfig) -> None:
    if line := replaced(model.model_dump()):
        warn(line)


def _show(info: dict[str, Any]) -> None:
    best = f", best epoch {info['best_epoch'] + 1}" if info["best_epoch"] is not None else ""
    title = f"Training: {info['num_examples']:,} queries, {info['num_steps']} steps an epoch{best}"
    show_history(title, info["history"], hidden=("filled", "grad_norm", "seconds"))


@artefact("model", version=2)
def save_untrained(
    making: Building, pool: Pool, *, model: ModelConfig, seed: int, checkpoint: str = ""
) -> dict[str, Any]:
    """Save an untrained checkpoint as a ``model`` artefact.

    Args:
        making: artefact to make.
        pool: pool that loads the checkpoint.
        model: settings of the model.
        seed: seed of weights that the checkpoint lacks.
        checkpoint: checksum of the checkpoint.
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
