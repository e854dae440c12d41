"""Runs the trainer on the tiny data, alone or as several gloo processes."""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.models.config import ModelConfig, SideConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.models.precision import torch_dtype
from raydr.models.scores.base import ScoreFunction
from raydr.noise.detectors.base import Detection, Detector, FloatArray, MixtureFit
from raydr.training.checkpoint import Progress
from raydr.training.config import TrainConfig
from raydr.training.detection import PairFlags
from raydr.training.run import TrainingInputs, build_setup
from raydr.training.trainer import Trainer


class AboveMedian(Detector):
    """Flags half of the pairs, so that a test of what flags do has some: on tiny data mixtures find one group."""

    name: Literal["above_median"] = "above_median"

    def fit(self, perplexities_N: FloatArray, random_R: FloatArray) -> MixtureFit:
        raise AssertionError("there is nothing to fit")

    def detect(self, perplexities_N: FloatArray, random_N: FloatArray | None = None) -> Detection:
        # Both are read, so that what differs between workers would show.
        assert random_N is not None
        above_N = perplexities_N - random_N
        clean_N = above_N <= np.median(above_N)
        return Detection(clean_N, np.zeros(len(clean_N)), self.threshold, None)


class Halves(ScoreFunction):
    """The larger inner product of a query's first and second half with those of the passage; in no file of raydr."""

    name: Literal["halves"] = "halves"

    def pairs(self, query: torch.Tensor, passage: torch.Tensor) -> torch.Tensor:
        return (query * passage).unflatten(-1, (2, -1)).sum(-1).amax(-1)


@dataclass
class Recorder:
    """A listener that keeps what it hears, and can stop training at a step or keep checkpoints."""

    keep_at: int | None = None
    folder: Path | None = None
    steps: list[dict[str, float]] = field(default_factory=list)
    flags: list[PairFlags] = field(default_factory=list)

    def on_step(self, progress: Progress, num_steps: int, metrics: dict[str, float]) -> None:
        self.steps.append(metrics)

    def on_detection(self, progress: Progress, flags: PairFlags) -> None:
        self.flags.append(flags)

    def on_checkpoint(self, progress: Progress, save: Callable[[Path], None]) -> None:
        if self.folder is not None and progress.global_step == self.keep_at:
            self.folder.mkdir(parents=True, exist_ok=True)
            save(self.folder)


def model_config(checkpoint: str, **changes: Any) -> ModelConfig:
    sides = {"query": SideConfig(max_length=24), "passage": SideConfig(max_length=32)}
    return ModelConfig.model_validate({"checkpoint": checkpoint, **sides, **changes})


def make_trainer(
    data: tuple[str, str], model: ModelConfig, train: dict[str, Any], recorder: Recorder | None = None
) -> Trainer:
    config = TrainConfig.model_validate({"dtype": "float32", "log_steps": 1, "dev": {"random_passages": 30}} | train)
    dataset = Dataset.open(data[1])
    tables = {
        split: (dataset.queries(split), dataset.qrels(split), dataset.negatives(split)) for split in dataset.splits
    }
    inputs = TrainingInputs(Corpus.open(data[0]), tables["train"], tables["dev"])
    student = DualEncoder.from_config(model, seed=0)
    wrap = DistributedDataParallel if dist.is_initialized() else None
    setup = build_setup(
        config, 0, student, build_tokenizers(model), inputs, torch_dtype(config.dtype), recorder or Recorder(), wrap
    )
    trainer = Trainer(setup)
    with torch.no_grad():
        # Without dropout the two networks of co-teaching would be one.
        for learner in trainer.learners[1:]:
            for at, parameter in enumerate(learner.model.parameters()):
                parameter.mul_(1.2 if at % 2 else 0.8)
    return trainer


def run_alone(
    data: tuple[str, str], model: ModelConfig, train: dict[str, Any], recorder: Recorder | None = None
) -> tuple[Progress, dict[str, torch.Tensor]]:
    trainer = make_trainer(data, model, train, recorder)
    return trainer.run(), dict(trainer.model.state_dict())


def run_with_ranks(
    num_ranks: int, tmp_path: Path, data: tuple[str, str], model: ModelConfig, train: dict[str, Any]
) -> tuple[Progress, dict[str, torch.Tensor]]:
    """The same training as ``num_ranks`` gloo processes; returns rank 0's result."""
    tmp_path.mkdir(parents=True, exist_ok=True)
    ranks = _ranks(num_ranks)
    try:
        ranks.run((str(tmp_path), data, model, train))
    except BaseException:
        # Those that are left may wait for the one that is gone.
        ranks.stop()
        _ranks.cache_clear()
        raise
    progress = Progress.model_validate_json((tmp_path / "progress.json").read_text())
    return progress, torch.load(tmp_path / "weights.pt", weights_only=True)


class _Ranks:
    """Processes that wait for trainings: one that starts takes seconds to import what it needs."""

    def __init__(self, num_ranks: int) -> None:
        spawning = mp.get_context("spawn")
        pipes = [spawning.Pipe() for _ in range(num_ranks)]
        self.connections = [ours for ours, _ in pipes]
        self.processes = [
            spawning.Process(target=_serve, args=(rank, num_ranks, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process, (_, theirs) in zip(self.processes, pipes, strict=True):
            process.start()
            theirs.close()

    def run(self, job: tuple[str, tuple[str, str], ModelConfig, dict[str, Any]]) -> None:
        for connection in self.connections:
            connection.send(job)
        waiting = list(self.connections)
        while waiting:
            for connection in wait(waiting):
                assert isinstance(connection, Connection)
                error = connection.recv()
                assert not error, error
                waiting.remove(connection)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()


_ranks = lru_cache(_Ranks)


def _serve(rank: int, num_ranks: int, connection: Connection) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    while True:
        folder, data, model, train = connection.recv()
        try:
            store = dist.FileStore(f"{folder}/store", num_ranks)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks)
            _train(rank, folder, data, model, train)
            # DDP and its tensors are gone by now, so this ends the group's threads.
            gc.collect()
            dist.destroy_process_group()
        except Exception:
            connection.send(traceback.format_exc())
            raise
        connection.send("")


def _train(rank: int, folder: str, data: tuple[str, str], model: ModelConfig, train: dict[str, Any]) -> None:
    trainer = make_trainer(data, model, train)
    progress = trainer.run()
    if rank == 0:
        Path(folder, "progress.json").write_text(progress.model_dump_json())
        torch.save(dict(trainer.model.state_dict()), f"{folder}/weights.pt")
