"""Train a retriever under torchrun, without Ray: ``torchrun --nproc-per-node 2 -m raydr.training FOLDER``.

FOLDER holds the artefacts of the inputs and ``training.yaml``::

    model: {checkpoint: bert-base-uncased}     # model and train are as in a run's config
    train: {loss: nce, batch_size: 64}
    seed: 0
    train_split: train
    dev_split: dev
    inputs: {negatives: negatives/bm25-train}  # folders by role; the defaults are dataset and corpus
    output: model

A working folder of ``raydr prepare`` has the links ``dataset`` and ``corpus``, so that it can be FOLDER. The model and
``outcome.json`` are written to FOLDER/model. The same command resumes an interrupted training.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final

import torch
import torch.distributed as dist
import yaml
from pydantic import ValidationError

from raydr.component import explain
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.errors import ConfigError, RaydrError
from raydr.models.checkpoint import checkpoint_fingerprint
from raydr.models.precision import resolve_dtype, torch_threads
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder
from raydr.store.identity import fingerprint_of
from raydr.training.checkpoint import Progress, checkpoint_folder
from raydr.training.collectives import num_ranks, rank
from raydr.training.config import TrainConfig
from raydr.training.process import TorchProcess
from raydr.training.reports import epoch_line
from raydr.training.run import TrainingJob, train_worker
from raydr.training.training import OptionalInputs, Training, check_inputs

#: Kinds of the inputs by role, as in ``raydr train``.
KINDS: Final[Mapping[str, str]] = {
    "dataset": "dataset",
    "corpus": "corpus",
    "negatives": "negatives",
    "start": "model",
    "ranker_scores": "ranker_scores",
    "margins": "margins",
    "dev_verdicts": "verdicts",
    "guide_queries": "embeddings",
    "guide_passages": "embeddings",
}
_FILE, _OUTCOME = "training.yaml", "outcome.json"


class TrainingFile(Training):
    """The settings in ``training.yaml``: a training, and the folders of its inputs and its output."""

    train: TrainConfig = TrainConfig()
    train_split: str = "train"
    dev_split: str = "dev"
    seed: int = 0
    inputs: dict[str, str] = {}
    """Folders of artefacts by role, relative to FOLDER."""

    output: str = "model"
    """Folder of the model, relative to FOLDER."""

    @classmethod
    def read(cls, folder: Folder) -> TrainingFile:
        """Read the file of a folder.

        Raises:
            ConfigError: the file does not exist, or a setting is wrong.
        """
        path = folder.path(_FILE)
        try:
            with open(path, encoding="utf-8") as file:
                settings = cls.model_validate(yaml.safe_load(file) or {})
        except FileNotFoundError:
            raise ConfigError(f"{path} does not exist: write the settings of the training into it") from None
        except yaml.YAMLError as error:
            raise ConfigError(f"{path} is no YAML: {error}") from None
        except ValidationError as error:
            raise ConfigError(explain(error, path, cls)) from None
        if unknown := sorted(settings.inputs.keys() - KINDS.keys()):
            raise ConfigError(f"{path}: inputs has the unknown role {unknown[0]!r}; allowed: {', '.join(KINDS)}")
        return settings

    def artefacts(self, folder: Folder) -> dict[str, Artifact]:
        """Open the inputs, by role.

        Raises:
            ArtifactError: an input is missing or incomplete.
        """
        places = {"dataset": "dataset", "corpus": "corpus", **self.inputs}
        return {role: Artifact.open(os.path.join(folder.root, place), KINDS[role]) for role, place in places.items()}

    def training(self, device: torch.device, num_workers: int) -> Training:
        """Return the settings of the training for a number of workers, with the dtype resolved for a device.

        Raises:
            ConfigError: the workers cannot share a batch.
        """
        dtype = resolve_dtype(self.train.dtype, device.type)[0]
        try:
            train = TrainConfig.model_validate({**dict(self.train), "num_workers": num_workers, "dtype": dtype})
        except ValidationError as error:
            raise ConfigError(explain(error, f"{_FILE}, with {num_workers} workers,", TrainConfig)) from None
        return Training(**{name: getattr(self, name) for name in Training.model_fields} | {"train": train.resolved()})


class Lines:
    """A watcher that writes a line per epoch to stderr."""

    def tell(self, message: str) -> None:
        sys.stderr.write(f"{message}\n")

    def step(self, progress: Progress, num_steps: int) -> None:
        """Show nothing."""

    def epoch(self, progress: Progress) -> None:
        self.tell(epoch_line(progress))


def train_folder(folder: Folder, settings: TrainingFile) -> dict[str, Any]:
    """Train the model of a folder, together with the other ranks of the process group, if it is initialised.

    Args:
        folder: folder of the inputs.
        settings: settings in its ``training.yaml``.

    Returns:
        The outcome of :func:`raydr.training.run.train_worker`.

    Raises:
        ConfigError, DataError, ArtifactError, ModelError, TrainingError: the model cannot be trained.
    """
    output = folder / settings.output
    if output.exists(_OUTCOME):
        raise ConfigError(f"{output} is trained already: remove it, or set another output in {folder.path(_FILE)}")
    train = settings.train
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if train.use_gpu else torch.device("cpu")
    training, inputs = settings.training(device, num_ranks()), settings.artefacts(folder)
    keys = {role: artifact.fingerprint for role, artifact in inputs.items()}
    keys["checkpoint"] = "" if "start" in inputs else checkpoint_fingerprint(training.model)
    states = checkpoint_folder(output)
    data, corpus = Dataset(inputs.pop("dataset")), inputs.pop("corpus")
    data.require_corpus(corpus)
    optional = OptionalInputs(**inputs)
    for line in check_inputs(training, data, optional):
        if rank() == 0:
            Lines().tell(f"warning: {line}")
    job = TrainingJob(training, data, Corpus(corpus), optional, output, Lines())
    key = fingerprint_of({"training": training.differing_settings(), "inputs": keys})
    # A single process uses all CPUs of the machine, as does `raydr train` without Ray.
    num_threads = None if num_ranks() == 1 else train.threads_per_worker
    with torch_threads(num_threads), closing(TorchProcess(states / key, device)) as process:
        outcome = train_worker(job, process)
    if rank() == 0:
        output.write_json(_OUTCOME, outcome)
        states.remove()
    return outcome


def main() -> int:
    """Run the command, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m raydr.training", description="Train a retriever without Ray.")
    parser.add_argument("folder", help=f"folder with {_FILE} and the artefacts that it names")
    folder = Folder(parser.parse_args().folder).absolute()
    try:
        settings = TrainingFile.read(folder)
        if int(os.environ.get("WORLD_SIZE", 1)) > 1:
            if settings.train.use_gpu:
                torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            dist.init_process_group("nccl" if settings.train.use_gpu else "gloo")
        train_folder(folder, settings)
    except RaydrError as error:
        sys.stderr.write(f"rank {rank()} of {num_ranks()}: {error}\n")
        return 1
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
