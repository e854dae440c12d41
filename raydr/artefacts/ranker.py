"""A cross-encoder, the run's ranker or that of a judge: trained, or an existing one taken as it is.

Artefact ``cross_encoder``: the files of a Hugging Face sequence classifier, which
``sentence_transformers.CrossEncoder(folder)`` opens, or of a causal language model, whose prompt only raydr asks, and
how title and text become one input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa

from raydr.artefacts.context import Context, trainers
from raydr.artefacts.corpus import declare_corpus
from raydr.artefacts.dataset import declare_dataset
from raydr.artefacts.declaration import Node, artefact
from raydr.artefacts.run import Run
from raydr.artefacts.train_progress import show_history
from raydr.component import Neutral
from raydr.console import warn
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.examples import read_examples
from raydr.data.partitions import Scope
from raydr.data.schema import RUNS
from raydr.data.tables import choose_queries, of_queries
from raydr.distributed.pool import Pool
from raydr.distributed.worker_group import run_workers
from raydr.errors import ConfigError, DataError, ModelError
from raydr.models.training_config import CrossEncoderTraining
from raydr.store.artifact import Artifact, Building
from raydr.store.folder import Folder, publish_files
from raydr.training.config import TrainConfig
from raydr.training.ranker_config import RankerConfig

if TYPE_CHECKING:
    from raydr.models.cross_encoder import PairTokenizer
    from raydr.training.checkpoint import Progress, Save
    from raydr.training.cross_encoder import CrossEncoderTrainer
    from raydr.training.process import WorkerProcess
    from raydr.training.ranker_dev import RankerDev

#: An easy question, its title and passage: how likely a language model must be to answer it by yes or no.
_EASY, _LEAST_SHARE = (["capital of France"], [""], ["The capital of France is Paris."]), 0.01


@dataclass(frozen=True)
class CrossEncoderJob:
    """What every worker of one training knows; picklable."""

    settings: CrossEncoderTraining
    split: str
    seed: int
    scope: Scope
    data: Dataset
    corpus: Corpus
    negatives: Artifact | None
    start: Artifact | None
    dev: str
    dev_run: Artifact | None
    output: Folder


def cross_encoder(
    context: Context,
    settings: CrossEncoderTraining,
    negatives: Node | None,
    pairs: Node | None = None,
    start: Node | None = None,
    name: str = "cross-encoder",
    dev_run: Node | None = None,
) -> Node:
    """Declare a cross-encoder trained on pairs and their candidates; with ``num_epochs`` 0 the checkpoint as it is.

    Args:
        context: the config.
        settings: how it is trained.
        negatives: the candidates; None if it learns from random passages, or from what came with the data, alone.
        pairs: the data set with the pairs that it is trained on; the run's if None.
        start: the cross-encoder that it goes on from; ``model.checkpoint`` of the settings if None.
        name: what it is called.
        dev_run: over the dev split, which it orders after each epoch; None if the last epoch is kept.
    """
    config, label = context.config, context.label(name)
    checkpoint = context.facts.cross_encoder_checkpoint(settings.model) if start is None else ""
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
    """Train a cross-encoder to tell a query's positives from its candidate negatives and from random passages.

    The candidates are taken for negatives, but for those that a judge has dropped or weighted less.

    Source: Park et al. (HCLT 2023) and RocketQA for binary cross-entropy; Zhang and Stratos (NAACL 2021, §6.3) and AR2
    (ICLR 2022) for the softmax over a list.

    Args:
        making: the ``cross_encoder`` artefact; checkpoints lie beside it until it is finished.
        pool: where it is trained.
        dataset: the judgments.
        corpus: the corpus it was prepared with.
        negatives: a ``negatives`` artefact of the split; the data set's own candidates if None.
        start: the cross-encoder that training goes on from; the checkpoint of the settings if None.
        dev_run: a ``run`` over dev queries, which it orders after each epoch; None if the last epoch is kept.
        settings: how it is trained, with a dtype that is resolved.
        workers: the section ``train``, for workers and devices.
        split: what is trained on.
        seed: of what is drawn.
        scope: the partitions that a query's random negatives are drawn from.
        dev: the split of ``dev_run``.
        predicts: what the saved model gives, which its settings' class says.
        best_epoch_from: the first epoch that may become the model; the loss says it.
        checkpoint: checksum of what it starts from.

    Raises:
        DataError: no query of ``dev`` has a judgment.
        ConfigError: the batch cannot be shared by the workers, or hard negatives are asked for and there are none.
        ModelError: the checkpoint cannot be loaded.
        TrainingError: training broke off; the same command goes on from the last checkpoint.
    """
    data = Dataset(dataset)
    data.require_corpus(corpus)
    _check_workers(settings, workers)
    if settings.num_hard_negatives and not (negatives or dataset).parts(f"negatives/{split}"):
        raise ConfigError(
            f"{settings.section}.num_hard_negatives is {settings.num_hard_negatives} and there are no candidates of "
            f"split {split!r}: mine some first, or set it to 0"
        )
    job = CrossEncoderJob(
        settings, split, seed, scope, data, Corpus(corpus), negatives, start, dev, dev_run, making.folder
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
    """Return a line for each dev measure in which the chosen epoch is not ahead of the run that it orders."""
    before: Mapping[str, float] = outcome["dev"]
    after = outcome["history"][outcome["best_epoch"]]["metrics"] if before else {}
    return [
        f"the ranker orders dev queries no better than the run that it is given: {name} {after[name]:.4f}, the run "
        f"{value:.4f}"
        for name, value in before.items()
        if after[name] <= value
    ]


def _mined_by(settings: CrossEncoderTraining, negatives: Artifact | None) -> str:
    """Return who has proposed the candidates, and who has judged them; empty if there are none."""
    if not settings.num_hard_negatives:
        return ""
    facts = {"miner": "source"} if negatives is None else negatives.info
    return ", judged by ".join([facts["miner"], *filter(None, [" and ".join(facts.get("judges", []))])])


@artefact("cross_encoder")
def save_cross_encoder(
    making: Building, pool: Pool, *, settings: CrossEncoderTraining, predicts: str = "", checkpoint: str = ""
) -> dict[str, Any]:
    """Take a checkpoint as it is.

    Raises:
        ModelError: it cannot be loaded, or is no cross-encoder.
    """
    pool.run(_save_checkpoint, settings, making.folder)
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


def _save_checkpoint(settings: CrossEncoderTraining, output: Folder) -> None:
    from raydr.models.cross_encoder import CrossEncoder, PairTokenizer
    from raydr.models.language_model import YesOrNo

    model = CrossEncoder.from_config(settings.model, must_be_trained=True, section=settings.section)
    tokenizer = PairTokenizer(settings.model)
    if isinstance(model.classifier, YesOrNo):
        share = model.classifier.share_of_words(tokenizer(*_EASY))
        if share < _LEAST_SHARE:
            raise ModelError(
                f"{settings.section}: asked {_EASY[0][0]!r} about {_EASY[2][0]!r}, {settings.model.checkpoint} says "
                f"yes or no with a probability of {share:.1%} only. It thinks aloud, or does not follow the prompt: "
                "see the prompt's template and words"
            )
    publish_files(output, lambda path: model.save(path, tokenizer, settings.predicts))


def train_worker(job: CrossEncoderJob, process: WorkerProcess) -> dict[str, Any]:
    """Train on this worker's share of each batch; return the outcome."""
    trainer, tokenizer = _set_up(job, process)
    progress = trainer.run()
    process.wait()
    if process.rank == 0:
        publish_files(job.output, lambda path: trainer.model.save(path, tokenizer, job.settings.predicts))
    return {
        "history": [row.model_dump() for row in progress.history],
        "num_examples": len(trainer.examples),
        "num_steps": trainer.num_steps,
        "best_epoch": progress.best_epoch,
        "loss": job.settings.loss.name,
        "num_hard_negatives": job.settings.num_hard_negatives,
        "num_random_negatives": job.settings.num_random_negatives,
        "dev": {} if trainer.dev is None else {f"dev {name}": trainer.dev.before() for name in trainer.dev.measures},
    }


def _dev(job: CrossEncoderJob, tokenizer: PairTokenizer) -> RankerDev | None:
    """Return what measures the epochs; None if nothing does.

    Raises:
        DataError: no dev query has a judgment.
    """
    from raydr.training.ranker_dev import RankerDev

    settings, split = job.settings, job.dev
    if not isinstance(settings, RankerConfig) or settings.dev is None or job.dev_run is None:
        return None
    qrels = job.data.qrels(split)
    chosen = choose_queries(set(qrels["query_id"].to_pylist()), settings.dev.max_queries, job.seed)
    if not chosen:
        raise DataError(
            f"split {split!r} of the data set at {job.data.artifact.folder} has no judgments, so that no epoch of the "
            "ranker can be measured on it: set data.dev_split to a split that has some, or ranker.dev to null"
        )
    rows = pa.concat_tables([RUNS.empty_table(), *Run(job.dev_run).of_queries(sorted(chosen))])
    return RankerDev(rows, job.data.queries(split), of_queries(qrels, chosen), job.corpus, tokenizer, settings.dev)


def _set_up(job: CrossEncoderJob, process: WorkerProcess) -> tuple[CrossEncoderTrainer, PairTokenizer]:
    """Return the trainer in the state that it goes on from, and the model's tokenizer."""
    from raydr.models.cross_encoder import CrossEncoder, PairTokenizer
    from raydr.models.precision import torch_dtype
    from raydr.training.cross_encoder import CrossEncoderTrainer
    from raydr.training.process import last_state

    def report(progress: Progress, copy: Callable[[], Save]) -> None:
        facts = {"epoch": progress.epoch, "global_step": progress.global_step}
        process.report(facts | progress.history[-1].metrics, copy)

    settings = job.settings
    origin = settings.model
    if job.start is not None:
        origin = origin.model_copy(update={"checkpoint": job.start.local_folder()})
    tokenizer = PairTokenizer(origin)
    model = CrossEncoder.from_config(origin, job.seed, section=settings.section).to(process.device)
    # What is saved with the model names the checkpoint of the run, not a folder of this node.
    model.config = settings.model
    shared = process.num_ranks > 1
    examples = read_examples(job.data, job.split, job.negatives, job.corpus, job.scope, shared)
    trainer = CrossEncoderTrainer(
        settings,
        job.seed,
        model,
        tokenizer,
        examples,
        job.corpus,
        torch_dtype(settings.dtype),
        report,
        wrap=process.wrap,
        dev=_dev(job, tokenizer),
    )
    folder = last_state(process.states)
    if folder is not None:
        trainer.resume(folder)
    return trainer, tokenizer
