"""The cross-encoder of the judge ``classifier``: trained on Ray Train, or an existing one taken as it is.

Artefact ``cross_encoder``: the files of a Hugging Face sequence classifier, which
``sentence_transformers.CrossEncoder(folder)`` opens, and how title and text become one input.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.errors import ConfigError, DataError, TrainingError
from raydr.models.checkpoint import cross_encoder_fingerprint
from raydr.runtime.console import say, show_table
from raydr.stages.tasks import fetch
from raydr.stages.worker_group import (
    checkpoint_folder,
    report_checkpoint,
    run_worker_group,
    set_worker_threads,
    training_dtype,
)
from raydr.store.artifact import Artifact, Building, Identity, begin
from raydr.store.folder import Folder, publish_files

if TYPE_CHECKING:
    from raydr.models.cross_encoder import PairTokenizer
    from raydr.training.checkpoint import Progress
    from raydr.training.cross_encoder import CrossEncoderTrainer

#: Raised when training gives another model for the same config.
VERSION = 1


def train_classifier(
    config: RunConfig,
    dataset: Folder,
    corpus: Folder,
    negatives: Folder | None,
    output: Folder,
    overwrite: bool = False,
) -> Artifact:
    """Train a cross-encoder to tell a query's positives from its candidate negatives and from random passages.

    Binary cross-entropy; the candidates are taken for negatives, false ones included: they are too few and too unlike
    each other to be learnt by heart in an epoch or two.

    Source: Park et al. (HCLT 2023) and RocketQA.

    Args:
        config: ``judge.classifier`` says how; workers and devices are those of ``train``.
        dataset: ``data.train_split`` is trained on.
        corpus: the corpus it was prepared with.
        negatives: a ``negatives`` artefact of that split; None if ``judge.classifier.num_hard_negatives`` is 0.
        output: where the ``cross_encoder`` artefact goes; checkpoints lie beside it until it is finished.
        overwrite: replace what is at ``output``.

    Raises:
        ConfigError: the batch cannot be shared by the workers, or hard negatives are asked for and not given.
        ModelError: the checkpoint cannot be loaded, or with ``num_epochs`` 0 is no cross-encoder.
        TrainingError: training broke off; the same command goes on from the last checkpoint.
    """
    settings, data = config.judge.classifier, Dataset.open(dataset)
    data.require_corpus(Artifact.open(corpus, "corpus"))
    _check_workers(config)
    if negatives is None and settings.num_epochs and settings.num_hard_negatives:
        raise ConfigError(
            f"judge.classifier.num_hard_negatives is {settings.num_hard_negatives} and no candidates were given: mine "
            "some first, or set it to 0"
        )
    checkpoint = cross_encoder_fingerprint(settings.model)
    if settings.num_epochs == 0:
        identity = Identity(
            kind="cross_encoder",
            version=VERSION,
            config={"model": settings.model.fingerprint_settings(exclude={"checkpoint"}), "trained": False},
            inputs={"checkpoint": checkpoint},
        )
    else:
        dtype, reason = training_dtype(config.train, settings.dtype)
        excluded = {"model": {"checkpoint"}}
        identity = Identity(
            kind="cross_encoder",
            version=VERSION,
            config={
                **settings.fingerprint_settings(exclude=excluded),
                "dtype": dtype,
                "split": config.data.train_split,
                "seed": config.seed,
            },
            inputs={
                "dataset": data.fingerprint,
                "corpus": data.corpus_fingerprint,
                "checkpoint": checkpoint,
            }
            | ({"negatives": Artifact.open(negatives, "negatives").fingerprint} if negatives is not None else {}),
        )
    with begin(output, identity, overwrite) as making:
        if isinstance(making, Artifact):
            say(f"classifier {output}: already there with the same fingerprint, reused")
            return making
        if settings.num_epochs == 0:
            return _take_as_it_is(config, making)
        say(f"training the classifier in {dtype}: {reason}")
        return _fit(config, making, dataset, corpus, negatives, dtype)


def _check_workers(config: RunConfig) -> None:
    workers, size = config.train.num_workers, config.judge.classifier.batch_size
    fewest, most = (workers, workers) if isinstance(workers, int) else workers
    wrong = [count for count in range(fewest, most + 1) if size % count]
    if wrong:
        raise ConfigError(f"judge.classifier.batch_size {size} is not divisible by train.num_workers {wrong[0]}")


def _take_as_it_is(config: RunConfig, making: Building) -> Artifact:
    import ray

    fetch(ray.remote(num_cpus=1)(_save_checkpoint).remote(config.model_dump(mode="json"), making.folder))
    return _finish(config, making, {"trained": False, "history": []})


def _save_checkpoint(config: dict[str, Any], output: Folder) -> None:
    from raydr.models.cross_encoder import CrossEncoder, PairTokenizer

    settings = RunConfig.parse(config).judge.classifier.model
    model = CrossEncoder.from_config(settings, must_be_trained=True)
    publish_files(output, lambda path: model.save(path, PairTokenizer(settings)))


def _finish(config: RunConfig, making: Building, info: dict[str, Any]) -> Artifact:
    making.record_files()
    made = making.finish(info, config.model_dump(mode="json"))
    if info["history"]:
        rows = ([row["epoch"] + 1, f"{row['metrics']['loss']:.4f}"] for row in info["history"])
        show_table(
            f"Classifier: {info['num_examples']:,} queries, {info['num_steps']} steps an epoch", ["epoch", "loss"], rows
        )
    say(f"classifier: {made.folder}")
    return made


def _fit(
    config: RunConfig, making: Building, dataset: Folder, corpus: Folder, negatives: Folder | None, dtype: str
) -> Artifact:
    arguments = {
        "config": config.model_dump(mode="json"),
        "dataset": dataset.url,
        "corpus": corpus.url,
        "negatives": negatives.url if negatives is not None else None,
        "output": making.folder.url,
        "dtype": dtype,
    }
    outcome = run_worker_group(train_worker, arguments, making, config.train, "the classifier")
    made = _finish(config, making, {"trained": True, "dtype": dtype, **outcome})
    checkpoint_folder(making.folder).remove()
    return made


def train_worker(arguments: dict[str, Any]) -> dict[str, Any]:
    """What each Ray Train worker runs; returns the outcome, or an error that must not be retried."""
    import ray.train

    # Returned and not raised: Ray Train would start the group again, and all workers would come to the same.
    try:
        trainer, tokenizer = _set_up(arguments)
        progress = trainer.run()
    except (ConfigError, DataError, TrainingError) as error:
        return {"error": str(error)}
    if ray.train.get_context().get_world_rank() == 0:
        publish_files(Folder(arguments["output"]), lambda path: trainer.model.save(path, tokenizer))
    return {
        "history": [row.model_dump() for row in progress.history],
        "num_examples": len(trainer.examples),
        "num_steps": trainer.num_steps,
    }


def _set_up(arguments: dict[str, Any]) -> tuple[CrossEncoderTrainer, PairTokenizer]:
    """The trainer in the state that it goes on from, and the model's tokenizer."""
    import ray.train
    from ray.train.torch import get_device, prepare_model

    from raydr.data.examples import load_examples
    from raydr.models.cross_encoder import CrossEncoder, PairTokenizer
    from raydr.models.precision import torch_dtype
    from raydr.training.cross_encoder import CrossEncoderTrainer

    config = RunConfig.parse(arguments["config"])
    settings, split = config.judge.classifier, config.data.train_split
    set_worker_threads(config.train)
    data, corpus = Dataset.open(arguments["dataset"]), Corpus.open(arguments["corpus"])
    mined = Artifact.open(arguments["negatives"], "negatives") if arguments["negatives"] is not None else None
    tokenizer = PairTokenizer(settings.model)
    trainer = CrossEncoderTrainer(
        settings,
        config.seed,
        CrossEncoder.from_config(settings.model, config.seed).to(get_device()),
        tokenizer,
        load_examples(*data.training_tables(split, mined), corpus),
        corpus,
        torch_dtype(arguments["dtype"]),
        _report,
        wrap=prepare_model,
    )
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            trainer.resume(Path(folder))
    return trainer, tokenizer


def _report(progress: Progress, save: Callable[[Path], None]) -> None:
    report_checkpoint({"epoch": progress.epoch, **progress.history[-1].metrics}, save)
