"""Runs the trainer on the tiny data, alone or as several gloo processes."""

from __future__ import annotations

import gc
import os
import traceback
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from numpy.typing import NDArray
from torch.nn.parallel import DistributedDataParallel

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.embeddings import Embeddings
from raydr.data.examples import load_examples
from raydr.data.tables import RUNS, SplitTables
from raydr.models.config import ModelConfig, SideConfig
from raydr.models.cross_encoder import CrossEncoder, PairTokenizer
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.models.precision import torch_dtype
from raydr.models.scores.base import ScoreFunction
from raydr.noise.detectors.base import Detection, Detector, FloatArray, IntArray
from raydr.training.checkpoint import Progress, Save
from raydr.training.collectives import send_gradients
from raydr.training.config import DDP_SETTINGS, Gradients, TrainConfig
from raydr.training.coteaching import CoTeachingTrainer
from raydr.training.cross_encoder import CrossEncoderTrainer
from raydr.training.detection import PairFlags
from raydr.training.ranker_config import RankerConfig
from raydr.training.ranker_dev import RankerDev
from raydr.training.run import TrainingInputs, build_trainer
from raydr.training.sections import GuideConfig
from raydr.training.signals import Guide, RankerScores, Signal
from raydr.training.trainer import Trainer


class AboveMedian(Detector):
    """Flags half of the pairs, so that a test of what flags do has some: on tiny data mixtures find one group."""

    name: Literal["above_median"] = "above_median"

    def detect(
        self, margins_N: FloatArray, random_N: FloatArray | None = None, fold_N: IntArray | None = None
    ) -> Detection:
        # Both are read, so that what differs between workers would show.
        assert random_N is not None
        above_N = margins_N - random_N
        clean_N = above_N <= np.median(above_N)
        return Detection(clean_N, np.zeros(len(clean_N)), self.threshold, None)


class Halves(ScoreFunction):
    """The larger inner product of a query's first and second half with those of the passage; in no file of raydr."""

    name: Literal["halves"] = "halves"

    def pairs(self, query: torch.Tensor, passage: torch.Tensor) -> torch.Tensor:
        return (query * passage).unflatten(-1, (2, -1)).sum(-1).amax(-1)


@dataclass(frozen=True)
class SomeVectors:
    """Vectors that are made up."""

    vectors_ND: NDArray[np.float16]

    def take(self, rows: IntArray) -> NDArray[np.float16]:
        return self.vectors_ND[rows]


def some_guide(num_queries: int, num_passages: int, rule: GuideConfig) -> Guide:
    """A guide whose vectors are made up, by example and by corpus row."""
    vectors_ND = np.random.default_rng(0).normal(size=(500, 8)).astype(np.float16)
    queries, passages = SomeVectors(vectors_ND), SomeVectors(vectors_ND[::-1][:num_passages])
    return Guide(cast(Embeddings, queries), np.arange(num_queries), cast(Embeddings, passages), rule)


@dataclass
class Recorder:
    """A listener that keeps what it hears, and can keep the state after a step.

    The state is written when the next one comes, as a slow disk would: training has gone on since it was copied.
    """

    keep_at: int | None = None
    folder: Path | None = None
    steps: list[dict[str, float]] = field(default_factory=list)
    flags: list[PairFlags] = field(default_factory=list)
    state: Save | None = None

    def on_step(self, progress: Progress, num_steps: int, metrics: dict[str, float]) -> None:
        self.steps.append(metrics)

    def on_detection(self, progress: Progress, flags: PairFlags) -> None:
        self.flags.append(flags)

    def has_notice(self) -> bool:
        return False

    def on_checkpoint(self, progress: Progress, copy: Callable[[], Save]) -> None:
        if self.folder is not None and self.state is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.state(self.folder)
        self.state = copy() if progress.global_step == self.keep_at else None


def model_config(checkpoint: str, **changes: Any) -> ModelConfig:
    sides = {"query": SideConfig(max_length=24), "passage": SideConfig(max_length=32)}
    return ModelConfig.model_validate({"checkpoint": checkpoint, **sides, **changes})


def make_trainer(
    data: tuple[str, str], model: ModelConfig, train: dict[str, Any], recorder: Recorder | None = None,
    device: str = "cpu",
) -> Trainer:  # fmt: skip
    config = TrainConfig.model_validate({"dtype": "float32", "log_steps": 1, "dev": {"random_passages": 30}} | train)
    dataset = Dataset.open(data[1])
    tables = {
        split: (dataset.queries(split), dataset.qrels(split), dataset.negatives(split)) for split in dataset.splits
    }
    corpus = Corpus.open(data[0])
    examples, signals = load_examples(*tables["train"], corpus), list[Signal]()
    if config.loss.reads_ranker_scores:
        signals.append(RankerScores.join(some_ranker_scores(tables["train"]), examples, corpus))
    if config.guide is not None:
        signals.append(some_guide(len(examples), len(corpus), config.guide))
    inputs = TrainingInputs(corpus, examples, tables["dev"], signals)
    student = DualEncoder.from_config(model, seed=0).to(device)
    wrap = partial(data_parallel, config.gradients) if dist.is_initialized() else _alone
    trainer = build_trainer(
        config, 0, student, build_tokenizers(model), inputs, torch_dtype(config.dtype), recorder or Recorder(), wrap
    )
    with torch.no_grad():
        # Without dropout the two networks of co-teaching would be one.
        if isinstance(trainer, CoTeachingTrainer):
            for at, parameter in enumerate(trainer.peer.model.parameters()):
                parameter.mul_(1.2 if at % 2 else 0.8)
    return trainer


def _alone(module: torch.nn.Module) -> torch.nn.Module:
    return module


def data_parallel(gradients: Gradients, module: torch.nn.Module) -> torch.nn.Module:
    """As a worker of Ray Train wraps it."""
    return send_gradients(DistributedDataParallel(module, **DDP_SETTINGS), gradients)


def make_ranker_trainer(
    data: tuple[str, str],
    config: RankerConfig,
    on_epoch: Callable[[Progress, Callable[[], Save]], None] = lambda progress, copy: None,
) -> CrossEncoderTrainer:
    """Ranks draw their own dropout: the config sets it to 0 where they are compared."""
    dataset, corpus = Dataset.open(data[1]), Corpus.open(data[0])
    examples = load_examples(dataset.queries("train"), dataset.qrels("train"), dataset.negatives("train"), corpus)
    model, tokenizer = CrossEncoder.from_config(config.model, seed=1), PairTokenizer(config.model)
    tables = dataset.queries("dev"), dataset.qrels("dev")
    dev = None if config.dev is None else RankerDev(some_run(dataset), *tables, corpus, tokenizer, config.dev)
    wrap = DistributedDataParallel if dist.is_initialized() else None
    return CrossEncoderTrainer(
        config, 0, model, tokenizer, examples, corpus, torch.float32, on_epoch, lambda _: None, wrap=wrap, dev=dev
    )


def some_run(dataset: Dataset) -> pa.Table:
    """Over dev: the positive of every query but the first among those of five others, by a fixed rule."""
    qrels = dataset.qrels("dev").to_pylist()
    passages = sorted({row["passage_id"] for row in qrels})
    rows = []
    for row in qrels[1:]:
        others = [passage_id for passage_id in passages if passage_id != row["passage_id"]][:5]
        listed = sorted(
            [row["passage_id"], *others], key=lambda passage_id: zlib.crc32((row["query_id"] + passage_id).encode())
        )
        rows += [(row["query_id"], passage_id, at + 1, -float(at)) for at, passage_id in enumerate(listed)]
    return pa.Table.from_arrays(list(map(pa.array, zip(*rows, strict=True))), names=RUNS.names).cast(RUNS)


def some_ranker_scores(tables: SplitTables) -> pa.Table:
    """A score of every positive and candidate, by a fixed rule."""
    pairs = pa.concat_tables([table.select(["query_id", "passage_id"]) for table in tables[1:]])
    scores = [zlib.crc32(str(row).encode()) % 1000 / 100 for row in pairs.to_pylist()]
    return pairs.append_column("score", pa.array(scores, pa.float32()))


def run_alone(
    data: tuple[str, str], model: ModelConfig, train: dict[str, Any], recorder: Recorder | None = None
) -> tuple[Progress, dict[str, torch.Tensor]]:
    trainer = make_trainer(data, model, train, recorder)
    return trainer.run(), dict(trainer.model.state_dict())


def run_with_ranks(
    num_ranks: int, tmp_path: Path, data: tuple[str, str], model: ModelConfig, train: dict[str, Any]
) -> tuple[Progress, dict[str, torch.Tensor]]:
    """The same training as ``num_ranks`` gloo processes; returns rank 0's result."""
    return run_in_ranks(num_ranks, tmp_path, make_trainer, data, model, train)


def run_in_ranks(
    num_ranks: int, tmp_path: Path, make: Callable[..., Any], *arguments: Any
) -> tuple[Progress, dict[str, torch.Tensor]]:
    """The training of ``make(*arguments)`` as ``num_ranks`` gloo processes; returns rank 0's result."""
    tmp_path.mkdir(parents=True, exist_ok=True)
    ranks = _ranks(num_ranks)
    try:
        ranks.run((str(tmp_path), make, *arguments))
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

    def run(self, job: tuple[Any, ...]) -> None:
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
        folder, make, *arguments = connection.recv()
        try:
            store = dist.FileStore(f"{folder}/store", num_ranks)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks)
            _train(rank, folder, make, arguments)
            # DDP and its tensors are gone by now, so this ends the group's threads.
            gc.collect()
            dist.destroy_process_group()
        except Exception:
            connection.send(traceback.format_exc())
            raise
        connection.send("")


def _train(rank: int, folder: str, make: Callable[..., Any], arguments: list[Any]) -> None:
    trainer = make(*arguments)
    progress = trainer.run()
    if rank == 0:
        Path(folder, "progress.json").write_text(progress.model_dump_json())
        torch.save(dict(trainer.model.state_dict()), f"{folder}/weights.pt")
