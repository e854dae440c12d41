"""Training of a retriever, and the finished model as an artefact.

Artefact ``model``: the files of the model, which ``sentence_transformers.SentenceTransformer(folder)`` opens, and::

    detection/epoch-*.parquet    (query_id, margin, random_pair, log_posterior, clean), where pairs are detected
    optimizer.pt                 the optimiser's moments, if they are kept

Artefact ``warmup``: the state of a training after epochs of plain NCE, which others go on from.
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
    """Declare a trained dual encoder.

    Args:
        context: the config.
        name: what the model is called.
        training: how it is trained.
        pairs: the data set with the pairs that it is trained on.
        optional: what else it reads; the guide's vectors are added here.
        watcher: whom it tells how far it is; the console if None.

    Raises:
        ConfigError: the loss learns from a ranker, and there are no scores of one.
    """
    settings = training.train
    if settings.loss.reads_ranker_scores and optional.ranker_scores is None:
        raise ConfigError(
            f"the loss {settings.loss.name!r} learns from a ranker, and none is asked here: take nce, or rcl"
        )
    if settings.guide is not None:
        optional = _guided(context, optional, training.train_split)
    if not settings.num_hard_negatives:
        # Nothing is drawn from partitions.
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
        plain = settings.model_copy(update={"loss": NCE(), "pair_detection": None}).resolved()
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
    """Return what a training needs to go on from a shared state, which changes the time alone and so is no input."""
    if warmup is None:
        return {}
    folder = context.facts.places.folder(warmup.kind, warmup.key)
    return {"after": (warmup,), "warmup": partial(Artifact.open, folder, warmup.kind)}


def _guided(context: Context, optional: OptionalInputs[Node], split: str) -> OptionalInputs[Node]:
    """Add the guide's vectors of the split's queries and of the corpus."""
    asked = context.config.judge.guide
    if asked.score.passage_vectors.several:
        raise ConfigError(f"train.guide needs one vector a text: judge.guide.score is {asked.score.name!r}, take dual")
    own = context.of(context.config.model_copy(update={"model": asked}))
    guide = untrained(own, own.config.model, "guide")
    queries = encode.queries(own, guide, "guide", split)
    return replace(optional, guide_queries=queries, guide_passages=encode.passages(own, guide, "guide"))


def untrained(context: Context, model: ModelConfig, name: str) -> Node:
    """Declare a starting checkpoint as it is, to compare with or to ask."""
    return save_untrained.node(name, model=model, checkpoint=context.facts.checkpoint(model), seed=context.config.seed)


def num_learnt(of: Any) -> int:
    """Return how many queries a training reads, each once an epoch."""
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
    """Train a dual encoder: in this process where that is the pool and one worker is asked for, else on Ray Train.

    Args:
        making: the ``model`` artefact, or the ``warmup``; checkpoints lie beside it until it is finished.
        pool: where it is trained.
        tracker: logs step and epoch metrics; nothing is logged if None.
        dataset: its training split is trained on, its dev split chooses the epoch.
        corpus: the corpus it was prepared with.
        negatives, start, ranker_scores, margins, dev_verdicts, guide_queries, guide_passages: see
            :class:`OptionalInputs`.
        training: the settings.
        checkpoint: checksum of what the model starts from.
        best_epoch_from: the first epoch that may become the model; the loss says it.
        until: epochs of a ``warmup`` that is made; None for a model.
        warmup: opens the state after epochs of plain NCE that training begins with; None if it trains them itself.
        watcher: receives the progress; the console if None.

    Raises:
        DataError: the data set was prepared with another corpus, its dev split has no judgments, or the candidates are
            of another split.
        ArtifactError: no optimiser state was kept with the start.
        TrainingError: training broke off; the last checkpoint is kept and the same command goes on from it.
    """
    data = Dataset(dataset)
    data.require_corpus(corpus)
    optional = OptionalInputs(negatives, start, ranker_scores, margins, dev_verdicts, guide_queries, guide_passages)
    for line in check_inputs(training, data, optional):
        warn(line)
    if start is None:
        _say_what_is_replaced(training.model)
    # What goes on from a trained model follows settings that were shown before, or the sieve's own.
    miner = negatives.info.get("miner") if negatives is not None else None
    for advice in training_advice(training, miner) if start is None and until is None else []:
        warn(advice)
    # A verb whose model is there must not take the seconds that importing PyTorch does.
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


train_model = artefact("model", version=2, rows=num_learnt, asks_model=True)(train)
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
    """Save the starting checkpoint as a ``model`` artefact, to compare with.

    Args:
        making: the artefact.
        pool: where the checkpoint is loaded.
        model: the model.
        seed: draws weights that the checkpoint has not.
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
