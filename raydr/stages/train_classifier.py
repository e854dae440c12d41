"""The cross-encoder of the judge ``classifier``: trained, or an existing one taken as it is.

Artefact ``cross_encoder``: the files of a Hugging Face sequence classifier, which
``sentence_transformers.CrossEncoder(folder)`` opens, and how title and text become one input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.errors import ConfigError
from raydr.models.cross_encoder_config import CrossEncoderConfig
from raydr.noise.judge_models import ClassifierConfig
from raydr.runtime.console import say, show_table
from raydr.stages.member import Member
from raydr.stages.pool import Pool
from raydr.stages.worker_group import run_workers
from raydr.store.artifact import Artifact, Building
from raydr.store.folder import Folder, publish_files
from raydr.training.config import TrainConfig

if TYPE_CHECKING:
    from raydr.models.cross_encoder import PairTokenizer
    from raydr.training.checkpoint import Progress
    from raydr.training.cross_encoder import CrossEncoderTrainer

#: Raised when training gives another model for the same config.
VERSION = 1


@dataclass(frozen=True)
class ClassifierJob:
    """What every worker of one training knows; small and picklable."""

    settings: ClassifierConfig
    split: str
    seed: int
    dataset: Folder
    corpus: Folder
    negatives: Folder | None
    output: Folder


def train_classifier(
    making: Building,
    pool: Pool,
    dataset: Artifact,
    corpus: Artifact,
    negatives: Artifact | None,
    *,
    settings: ClassifierConfig,
    workers: TrainConfig,
    split: str,
    seed: int,
) -> dict[str, Any]:
    """Train a cross-encoder to tell a query's positives from its candidate negatives and from random passages.

    Binary cross-entropy; the candidates are taken for negatives, false ones included: they are too few and too unlike
    each other to be learnt by heart in an epoch or two.

    Source: Park et al. (HCLT 2023) and RocketQA.

    Args:
        making: the ``cross_encoder`` artefact; checkpoints lie beside it until it is finished.
        pool: where it is trained.
        dataset: the judgments.
        corpus: the corpus it was prepared with.
        negatives: a ``negatives`` artefact of the split; None if no hard negatives are drawn.
        settings: how it is trained, with a dtype that is resolved.
        workers: the section ``train``, for workers and devices.
        split: what is trained on.
        seed: of what is drawn.

    Raises:
        ConfigError: the batch cannot be shared by the workers, or hard negatives are asked for and not given.
        ModelError: the checkpoint cannot be loaded.
        TrainingError: training broke off; the same command goes on from the last checkpoint.
    """
    Dataset(dataset).require_corpus(corpus)
    _check_workers(settings, workers)
    if negatives is None and settings.num_hard_negatives:
        raise ConfigError(
            f"judge.classifier.num_hard_negatives is {settings.num_hard_negatives} and no candidates were given: mine "
            "some first, or set it to 0"
        )
    mined = negatives.folder if negatives is not None else None
    job = ClassifierJob(settings, split, seed, dataset.folder, corpus.folder, mined, making.folder)
    outcome = run_workers(pool, train_worker, job, making, workers, "the cross-encoder")
    show_table(
        f"Cross-encoder: {outcome['num_examples']:,} queries, {outcome['num_steps']} steps an epoch",
        ["epoch", "loss"],
        ([row["epoch"] + 1, f"{row['metrics']['loss']:.4f}"] for row in outcome["history"]),
    )
    making.record_files()
    say(f"cross-encoder: {making.folder}")
    return {"trained": True, "dtype": settings.dtype, **outcome}


def save_cross_encoder(making: Building, pool: Pool, *, model: CrossEncoderConfig) -> dict[str, Any]:
    """Take a checkpoint as it is.

    Raises:
        ModelError: it cannot be loaded, or is no cross-encoder.
    """
    pool.run(_save_checkpoint, model, making.folder)
    making.record_files()
    return {"trained": False, "history": []}


def _check_workers(settings: ClassifierConfig, train: TrainConfig) -> None:
    workers, size = train.num_workers, settings.batch_size
    fewest, most = (workers, workers) if isinstance(workers, int) else workers
    wrong = [count for count in range(fewest, most + 1) if size % count]
    if wrong:
        raise ConfigError(f"judge.classifier.batch_size {size} is not divisible by train.num_workers {wrong[0]}")


def _save_checkpoint(settings: CrossEncoderConfig, output: Folder) -> None:
    from raydr.models.cross_encoder import CrossEncoder, PairTokenizer

    model = CrossEncoder.from_config(settings, must_be_trained=True)
    publish_files(output, lambda path: model.save(path, PairTokenizer(settings)))


def train_worker(job: ClassifierJob, member: Member) -> dict[str, Any]:
    """Train on this worker's share of each batch; returns the outcome."""
    trainer, tokenizer = _set_up(job, member)
    progress = trainer.run()
    if member.rank == 0:
        publish_files(job.output, lambda path: trainer.model.save(path, tokenizer))
    return {
        "history": [row.model_dump() for row in progress.history],
        "num_examples": len(trainer.examples),
        "num_steps": trainer.num_steps,
    }


def _set_up(job: ClassifierJob, member: Member) -> tuple[CrossEncoderTrainer, PairTokenizer]:
    """The trainer in the state that it goes on from, and the model's tokenizer."""
    from raydr.data.examples import load_examples
    from raydr.models.cross_encoder import CrossEncoder, PairTokenizer
    from raydr.models.precision import torch_dtype
    from raydr.training.cross_encoder import CrossEncoderTrainer

    def report(progress: Progress, save: Callable[[Path], None]) -> None:
        facts = {"epoch": progress.epoch, "global_step": progress.global_step}
        member.report(facts | progress.history[-1].metrics, save)

    settings = job.settings
    data, corpus = Dataset.open(job.dataset), Corpus.open(job.corpus)
    mined = Artifact.open(job.negatives, "negatives") if job.negatives is not None else None
    tokenizer = PairTokenizer(settings.model)
    trainer = CrossEncoderTrainer(
        settings,
        job.seed,
        CrossEncoder.from_config(settings.model, job.seed).to(member.device),
        tokenizer,
        load_examples(*data.training_tables(job.split, mined), corpus),
        corpus,
        torch_dtype(settings.dtype),
        report,
        wrap=member.wrap,
    )
    with member.last_state() as folder:
        if folder is not None:
            trainer.resume(folder)
    return trainer, tokenizer
