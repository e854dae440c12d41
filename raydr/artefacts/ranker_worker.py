"""Worker of a cross-encoder: trains on its share of each batch, or saves a checkpoint without training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from raydr.artefacts.run import Run
from raydr.data.examples import read_examples
from raydr.data.tables import RUNS, choose_queries, of_queries
from raydr.errors import DataError, ModelError
from raydr.models.cross_encoder import CrossEncoder, PairTokenizer
from raydr.models.language_model import YesOrNo
from raydr.models.precision import torch_dtype
from raydr.models.training_config import CrossEncoderTraining
from raydr.store import Folder
from raydr.store.folder import publish_files
from raydr.training.checkpoint import Progress, Save
from raydr.training.collectives import num_ranks_here
from raydr.training.cross_encoder import CrossEncoderTrainer
from raydr.training.process import WorkerProcess, last_state
from raydr.training.ranker_config import CrossEncoderJob, RankerConfig
from raydr.training.ranker_dev import RankerDev

#: Easy question, title and passage of a test: a language model must answer yes or no with this probability.
_EASY, _LEAST_SHARE = (["capital of France"], [""], ["The capital of France is Paris."]), 0.01


def save_checkpoint(settings: CrossEncoderTraining, output: Folder) -> int:
    """Save the model of a checkpoint as a cross-encoder; return the length at which its own tokenizer cuts a pair.

    Raises:
        ModelError: the checkpoint cannot be loaded, or is no cross-encoder.
    """
    model = CrossEncoder.from_config(settings.model, must_be_trained=True, section=settings.section)
    tokenizer = PairTokenizer(settings.model)
    own_length = int(tokenizer.tokenizer.model_max_length)
    if isinstance(model.classifier, YesOrNo):
        share = model.classifier.share_of_words(tokenizer(*_EASY))
        if share < _LEAST_SHARE:
            raise ModelError(
                f"{settings.section}: asked {_EASY[0][0]!r} about {_EASY[2][0]!r}, {settings.model.checkpoint} says "
                f"yes or no with a probability of {share:.1%} only. It thinks aloud, or does not follow the prompt: "
                "see the prompt's template and words"
            )
    publish_files(output, lambda path: model.save(path, tokenizer, settings.predicts))
    return own_length


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
    """Return the measurement of epochs on dev; None without dev queries.

    Raises:
        DataError: no dev query has a judgment.
    """
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
    """Return the trainer in its last saved state, and the model's tokenizer."""

    def report(progress: Progress, copy: Callable[[], Save]) -> None:
        facts = {"epoch": progress.epoch, "global_step": progress.global_step}
        process.report(facts | progress.history[-1].metrics, copy)
        if process.rank == 0:
            job.watcher.epoch(progress)

    def show_step(progress: Progress) -> None:
        if process.rank == 0:
            job.watcher.step(progress, trainer.num_steps)

    settings = job.settings
    origin = settings.model
    if job.start is not None:
        origin = origin.model_copy(update={"checkpoint": job.start.local_folder()})
    tokenizer = PairTokenizer(origin)
    model = CrossEncoder.from_config(origin, job.seed, section=settings.section).to(process.device)
    # The saved settings name the checkpoint of the run, not a folder of this node.
    model.config = settings.model
    shared = num_ranks_here() > 1
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
        show_step,
        wrap=process.wrap,
        dev=_dev(job, tokenizer),
    )
    folder = last_state(process.states)
    if folder is not None:
        trainer.resume(folder)
    return trainer, tokenizer
