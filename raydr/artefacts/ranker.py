"""Cross-encoder of the ranker or of a judge: trained, or a checkpoint without training.

Artefact ``cross_encoder``: the files of a Hugging Face sequence classifier, which
``sentence_transformers.CrossEncoder(folder)`` opens, or of a causal language model, whose prompt only raydr asks, and
how title and text become one input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from raydr.artefacts import Context, Node, artefact, trainers
from raydr.artefacts.dataset import declare_corpus, declare_dataset
from raydr.artefacts.train_progress import show_history, training_here, training_on_ray
from raydr.component import Neutral
from raydr.console import warn
from raydr.data import Corpus, Dataset
from raydr.data.parts import Scope
from raydr.distributed.pool import Pool
from raydr.distributed.worker_group import run_workers, trains_here
from raydr.errors import ConfigError
from raydr.models.training_config import CrossEncoderTraining
from raydr.store import Artifact, Building
from raydr.training.config import TrainConfig
from raydr.training.ranker_config import CrossEncoderJob


def cross_encoder(
    context: Context,
    settings: CrossEncoderTraining,
    negatives: Node | None,
    pairs: Node | None = None,
    start: Node | None = None,
    name: str = "cross-encoder",
    dev_run: Node | None = None,
) -> Node:
    """Return the node of a cross-encoder; with ``num_epochs`` 0 it is the checkpoint without training.

    Args:
        context: config and facts.
        settings: settings of the training.
        negatives: mined candidates; None for random passages, or the data set's own negatives, alone.
        pairs: data set with the training pairs; that of the run if None.
        start: cross-encoder to continue from; ``model.checkpoint`` of the settings if None.
        name: name of the cross-encoder.
        dev_run: run on the dev split, reranked after each epoch; None keeps the last epoch.
    """
    config, label = context.config, context.label(name)
    checkpoint = context.facts.checkpoint(settings.model) if start is None else ""
    if not settings.num_epochs:
        return start or save_cross_encoder.node(
            label, settings=settings, predicts=settings.predicts, checkpoint=checkpoint
        )
    dtype = context.facts.training_dtype(config.train, settings.dtype)
    return train_cross_encoder.node(
        label,
        dataset=pairs or declare_dataset(context),
        corpus=declare_corpus(context),
        negatives=negatives if settings.num_hard_negatives else None,
        start=start,
        dev_run=dev_run,
        settings=settings.model_copy(update={"dtype": dtype}),
        predicts=settings.predicts,
        workers=config.train,
        split=config.data.train_split,
        seed=config.seed,
        scope=config.partition.negatives,
        dev="" if dev_run is None else config.data.dev_split,
        best_epoch_from=0 if dev_run is None else settings.loss.first_own_epoch(settings.num_epochs),
        checkpoint=checkpoint,
        demand=trainers(config),
    )


@artefact(
    "cross_encoder", rows=lambda of: of.settings.num_epochs * of.dataset.rows(f"qrels/{of.split}"), asks_model=True
)
def train_cross_encoder(
    making: Building,
    pool: Pool,
    dataset: Artifact,
    corpus: Artifact,
    negatives: Artifact | None = None,
    start: Artifact | None = None,
    dev_run: Artifact | None = None,
    *,
    settings: CrossEncoderTraining,
    predicts: str = "",
    workers: Annotated[TrainConfig, Neutral],
    split: str,
    seed: int,
    scope: Scope = "own",
    dev: str = "",
    best_epoch_from: int = 0,
    checkpoint: str = "",
) -> dict[str, Any]:
    """Train a cross-encoder on a query's positives, candidates and random passages.

    Candidates count as negatives, except those that a judge has dropped or weighted less.

    Source: Park et al. (HCLT 2023) and RocketQA for binary cross-entropy; Zhang and Stratos (NAACL 2021, §6.3) and AR2
    (ICLR 2022) for the softmax over a list.

    Args:
        making: ``cross_encoder`` artefact to make; checkpoints lie beside it until it is complete.
        pool: pool of the training.
        dataset: data set with the judgments.
        corpus: corpus of the data set.
        negatives: ``negatives`` of the split; the data set's own if None.
        start: cross-encoder to continue from; the checkpoint of the settings if None.
        dev_run: ``run`` on dev queries, reranked after each epoch; None keeps the last epoch.
        settings: settings of the training, with a resolved dtype.
        workers: section ``train``, for workers and devices.
        split: training split.
        seed: seed of the draws.
        scope: partitions of a query's random negatives.
        dev: split of ``dev_run``.
        predicts: output of the saved model, by the class of its settings.
        best_epoch_from: first epoch that may become the model, by the loss.
        checkpoint: checksum of the starting checkpoint.

    Raises:
        DataError: no query of ``dev`` has a judgment.
        ConfigError: the workers cannot share the batch, or demanded hard negatives are missing.
        ModelError: the checkpoint cannot be loaded.
        TrainingError: training was interrupted; the same command continues from the last checkpoint.
    """
    data = Dataset(dataset)
    _check_workers(settings, workers)
    if settings.num_hard_negatives and not (negatives or dataset).rows(f"negatives/{split}"):
        raise ConfigError(
            f"{settings.section}.num_hard_negatives is {settings.num_hard_negatives} and there are no candidates of "
            f"split {split!r}: set negatives.miner to bm25 or another miner, or num_hard_negatives to 0"
        )
    # Importing PyTorch and Transformers takes seconds, and most verbs make no ranker.
    from raydr.artefacts.ranker_worker import train_worker

    view = training_here if trains_here(pool, workers) else training_on_ray
    with view(settings.num_epochs) as watcher:
        job = CrossEncoderJob(
            settings, split, seed, scope, data, Corpus(corpus), negatives, start, dev, dev_run, making.folder, watcher
        )
        outcome = run_workers(pool, train_worker, job, making, workers, "the cross-encoder")
    title = f"Cross-encoder: {outcome['num_examples']:,} queries, {outcome['num_steps']} steps an epoch"
    if outcome["dev"]:
        title += f"; the run that it orders: {', '.join(f'{key} {value:.4f}' for key, value in outcome['dev'].items())}"
    show_history(title, outcome["history"])
    remarks = _no_better(outcome)
    for remark in remarks:
        warn(remark)
    making.record_files()
    facts = {"trained": True, "dtype": settings.dtype, "mined_by": _mined_by(settings, negatives), "remarks": remarks}
    return facts | outcome


def _no_better(outcome: Mapping[str, Any]) -> list[str]:
    """Return a line for each dev measure in which the chosen epoch does not improve the run."""
    before: Mapping[str, float] = outcome["dev"]
    after = outcome["history"][outcome["best_epoch"]]["metrics"] if before else {}
    return [
        f"the ranker orders dev queries no better than the run that it is given: {name} {after[name]:.4f}, the run "
        f"{value:.4f}"
        for name, value in before.items()
        if after[name] <= value
    ]


def _mined_by(settings: CrossEncoderTraining, negatives: Artifact | None) -> str:
    """Return the miner and the judges of the candidates; empty without candidates."""
    if not settings.num_hard_negatives:
        return ""
    facts = {"miner": "source"} if negatives is None else negatives.info
    return ", judged by ".join([facts["miner"], *filter(None, [" and ".join(facts.get("judges", []))])])


@artefact("cross_encoder")
def save_cross_encoder(
    making: Building, pool: Pool, *, settings: CrossEncoderTraining, predicts: str = "", checkpoint: str = ""
) -> dict[str, Any]:
    """Save a checkpoint without training.

    Raises:
        ModelError: it cannot be loaded, or is no cross-encoder.
    """
    from raydr.artefacts.ranker_worker import save_checkpoint

    own_length, model = pool.run(save_checkpoint, settings, making.folder), settings.model
    # Without a length a tokenizer has a huge number.
    if model.prompt is None and model.max_length != own_length < 1e9:
        warn(
            f"{model.checkpoint} cuts a pair at {own_length} tokens by its tokenizer, as in sentence-transformers, and "
            f"{settings.section}.model.max_length at {model.max_length}: scores of longer pairs differ"
        )
    making.record_files()
    return {"trained": False, "history": []}


def _check_workers(settings: CrossEncoderTraining, train: TrainConfig) -> None:
    workers, size = train.num_workers, settings.batch_size
    fewest, most = (workers, workers) if isinstance(workers, int) else workers
    wrong = [count for count in range(fewest, most + 1) if size % (count * settings.accumulation_steps)]
    if wrong:
        raise ConfigError(
            f"{settings.section}.batch_size {size} is not divisible by train.num_workers {wrong[0]}"
            + (f" x accumulation_steps {settings.accumulation_steps}" if settings.accumulation_steps > 1 else "")
        )
