"""A small part of a run, tried for a few seconds in a worker like its own: how fast a model reads, learns, is searched.

Each trial is one task of Ray with a worker's resources, so that its start-up and its peak of memory are a worker's.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from raydr.config.files import merged
from raydr.config.plan import DeviceFigures
from raydr.config.run import RunConfig
from raydr.console import say
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.examples import load_examples
from raydr.data.tables import of_queries, relevant
from raydr.distributed.arithmetic import Arithmetic, resolve_arithmetic
from raydr.distributed.cluster import stage_labels, start_ray
from raydr.distributed.failures import worker_errors
from raydr.distributed.ray_pool import RayPool
from raydr.indexing.build import write_index
from raydr.indexing.faiss_backend import load_faiss, make_index
from raydr.losses.nce import NCE
from raydr.models.config import ModelConfig, Side
from raydr.models.learning import choose_what_learns, num_learning
from raydr.models.pooling import pooled_count
from raydr.models.tokens import Tokens
from raydr.training.config import TrainConfig

if TYPE_CHECKING:
    from torch import nn

T = TypeVar("T")

#: Batches and steps before the clock starts: kernels are chosen and memory is found in them.
_WARM_UP = 2
#: Queries of a sample at most; steps that are tried before the queries repeat; vectors and queries of a search.
_QUERIES, _STEPS, _VECTORS, _SEARCHED = 1000, 8, 20_000, 256


@dataclass(frozen=True)
class TextRates:
    """What one worker does with texts of a kind: passages, queries, or pairs of both.

    Args:
        forward: seconds of a forward pass of one, with its share of the padding.
        encode: the same as the encoders of the section ``encode`` compute it, perhaps in int8.
        tokenize: seconds that a tokenising task needs for one.
        longest: tokens of the longest text over those of one with its padding.
        vectors: that the score function reads of one.
    """

    forward: float
    encode: float
    tokenize: float
    longest: float = 1.0
    vectors: float = 1.0


@dataclass(frozen=True)
class ModelRates:
    """What one worker does with a model that reads.

    Args:
        texts: by kind: ``passage`` and ``query`` of a retriever, ``pair`` of a ranker.
        dim: of a vector.
        num_parameters: of the model.
        num_learning: of those, adapters included, that training changes.
        device: what it ran on, or whose figures these are.
        peak_bytes: memory of the worker at its peak; None if it was not tried.
        load_seconds: until a worker has started and loaded the model.
    """

    texts: dict[str, TextRates]
    dim: int
    num_parameters: int
    num_learning: int
    device: str
    peak_bytes: int | None
    load_seconds: float = 0.0


@dataclass(frozen=True)
class StepRates:
    """Seconds of a training step of one worker's share of a batch, by plain NCE, and its memory at its peak."""

    seconds: float
    peak_bytes: int | None


@dataclass(frozen=True)
class SearchRates:
    """What one thread of FAISS does in a second: products of single numbers; bytes put into an index and written."""

    products: float
    fill_bytes: float


class Trials:
    """The trials of a plan: each is run when it is first asked for, and once.

    Args:
        config: the run; its section ``plan`` says for how long a model is tried, or has figures of another device.
        corpus: the prepared corpus, from which passages are sampled evenly.
        data: the prepared queries.
    """

    def __init__(self, config: RunConfig, corpus: Corpus, data: Dataset) -> None:
        self._given = config, corpus, data
        self._done: dict[tuple[object, ...], Any] = {}

    def retriever(self, model: ModelConfig) -> ModelRates:
        """Of a dual encoder: passages and queries."""
        return self._read(_read_texts, model, "texts are tokenised, and some encoded")

    def ranker(self) -> ModelRates:
        """Of the config's cross-encoder: pairs."""
        return self._read(_read_pairs, self._given[0].ranker.model, "queries are read with passages by the ranker")

    def step(self, model: ModelConfig, train: TrainConfig) -> StepRates:
        """Of a dual encoder's training."""
        share = max(2, train.batch_size // train.fewest_workers)
        if self._given[0].plan.device is not None:
            texts = self.retriever(model).texts
            # Three forward passes: one, and the backward pass that costs two.
            group = texts["query"].forward + train.passages_per_query * texts["passage"].forward
            return StepRates(3 * share * group, None)
        # As far as each micro-batch of this share keeps the two queries that it needs.
        fitting = (n for n in range(1, train.accumulation_steps + 1) if share % n == 0 and share // n >= 2)
        plain = {
            "loss": {"name": "nce"}, "pair_detection": None, "coteaching": None, "guide": None, "batch_size": share,
            "num_workers": 1, "num_epochs": 1000, "log_steps": 10**6, "share_warmup": None, "keep": "last",
            "dev": {}, "accumulation_steps": max(fitting),
        }  # fmt: skip
        return self._learn(_train, share, model, TrainConfig.model_validate(merged(train.model_dump(), plain)))

    def ranker_step(self) -> StepRates:
        """Of the config's cross-encoder's training, on lists of random passages."""
        config = self._given[0]
        share = max(1, config.ranker.batch_size // config.train.fewest_workers)
        if config.plan.device is not None:
            pairs = self.ranker().texts["pair"]
            # Lists are padded to their longest pair.
            return StepRates(3 * share * config.ranker.passages_per_query * pairs.forward * pairs.longest, None)
        return self._learn(_train_ranker, share)

    def search(self, dim: int) -> SearchRates:
        """Of an exact index."""
        return self._run(1, 0, "an index is filled and searched", _search, dim)[0]

    def _read(self, probe: Callable[..., ModelRates], model: Any, what: str) -> ModelRates:
        config, corpus, data = self._given
        figures, encode = config.plan.device, config.encode
        gpus = 0 if figures else encode.gpus_per_actor
        with worker_errors():
            start_ray()
            how = Arithmetic("float32", "cpu", encode.batch_tokens("cuda"))
            how = how if figures else resolve_arithmetic(encode, RayPool())
        by = f"by the figures of {figures.name}" if figures else f"with {how.dtype} on {how.device}"
        rates, seconds = self._run(
            encode.cpus_per_actor, gpus, f"{what} {by}", probe, config, corpus, data, model, how
        )  # fmt: skip
        return replace(rates, load_seconds=seconds)

    def _learn(self, probe: Callable[..., StepRates], share: int, *settings: Any) -> StepRates:
        train = self._given[0].train
        what = f"training steps of {share} queries, a worker's share"
        return self._run(train.cpus_per_worker, int(train.use_gpu), what, probe, *self._given, share, *settings)[0]

    def _run(self, cpus: float, gpus: float, what: str, probe: Callable[..., T], *arguments: Any) -> tuple[T, float]:
        """The result of a trial in a worker of its own, and the seconds that the worker needed to start."""
        key = (
            probe,
            *(
                argument.model_dump_json() if hasattr(argument, "model_dump_json") else str(argument)
                for argument in arguments
            ),
        )
        if key not in self._done:
            start_ray()
            import ray

            say(f"plan: {what}")
            started = time.perf_counter()
            with worker_errors():
                # One call a worker, so that each starts afresh and its peak of memory is its own.
                task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_calls=1, label_selector=stage_labels())(_timed)
                result, seconds = ray.get(task.remote(probe, *arguments))
            self._done[key] = result, max(0.0, time.perf_counter() - started - seconds)
        measured: tuple[T, float] = self._done[key]
        return measured


def _timed(probe: Callable[..., T], *arguments: Any) -> tuple[T, float]:
    started = time.perf_counter()
    return probe(*arguments), time.perf_counter() - started


def _read_texts(config: RunConfig, corpus: Corpus, data: Dataset, settings: ModelConfig, how: Arithmetic) -> ModelRates:
    """Tokenise passages and queries of a sample, and encode some of their batches."""
    from raydr.models.dual_encoder import DualEncoder, build_tokenizers
    from raydr.models.precision import torch_dtype

    _threads(config.encode.cpus_per_actor)
    texts = corpus.texts(_sampled(config, corpus))
    split = next(split for split in (*config.data.test_splits, config.data.train_split) if split in data.splits)
    queries = data.queries(split)["text"].slice(0, _QUERIES).to_pylist() or texts.texts
    tokenizers = build_tokenizers(settings)
    model = DualEncoder.from_config(settings, config.seed)
    num_parameters = sum(weights.numel() for weights in model.parameters())
    rates: dict[str, TextRates] = {}
    sides: tuple[tuple[Side, list[str] | None, list[str]], ...]
    sides = ("passage", texts.titles, texts.texts), ("query", None, queries)
    for side, titles, asked in sides:
        tokenizer, tower = tokenizers[side], model.tower(side)
        if config.plan.device is None:
            tower = tower.ready(how.device, torch_dtype(how.dtype))
        # The first call loads tables.
        few = tokenizer(titles and titles[:10], asked[:10])
        started = time.perf_counter()
        tokens = tokenizer(titles, asked)
        seconds = (time.perf_counter() - started) / len(asked)
        vectors, pooling = settings.vectors(side), config.encode.token_pooling if side == "passage" else 1
        rate = _rate(config, how, partial(tower, side=side), tower.backbone, tokens, tokenizer.pad_id)
        mean_vectors = float(np.mean([pooled_count(vectors.most(int(length)), pooling) for length in tokens.lengths]))
        rates[side] = replace(rate, tokenize=seconds, vectors=mean_vectors)
        if side == "passage" and config.encode.dtype == "int8" and config.plan.device is None:
            read = partial(_in_int8(tower, few, tokenizer.pad_id), side=side)
            encode = _rate(config, how, read, tower.backbone, tokens, tokenizer.pad_id).encode
            rates[side] = replace(rates[side], encode=encode)
    peak_bytes, device = _peak_and_device(config.plan.device, how.device)
    choose_what_learns(model, config.train.optimizer, config.seed, "train.optimizer")
    return ModelRates(rates, model.dim, num_parameters, num_learning(model), device, peak_bytes)


def _read_pairs(config: RunConfig, corpus: Corpus, data: Dataset, settings: Any, how: Arithmetic) -> ModelRates:
    """Tokenise queries with passages of a sample, and read some of their batches."""
    from raydr.models.cross_encoder import CrossEncoder, PairTokenizer
    from raydr.models.precision import torch_dtype

    _threads(config.encode.cpus_per_actor)
    texts = corpus.texts(_sampled(config, corpus))
    queries = data.queries(config.data.train_split)["text"].slice(0, _QUERIES).to_pylist()
    tokenizer = PairTokenizer(settings)
    tokens = tokenizer([queries[at % len(queries)] for at in range(len(texts.texts))], texts.titles, texts.texts)
    model = CrossEncoder.from_config(settings, config.seed, section="ranker")
    if config.plan.device is None:
        model.to(device=how.device, dtype=torch_dtype(how.dtype)).eval()
    rates = _rate(config, how, model, model.classifier, tokens, tokenizer.pad_id)
    peak_bytes, device = _peak_and_device(config.plan.device, how.device)
    num_parameters = sum(weights.numel() for weights in model.parameters())
    return ModelRates({"pair": rates}, 1, num_parameters, num_parameters, device, peak_bytes)


def _sampled(config: RunConfig, corpus: Corpus) -> Any:
    return np.unique(np.linspace(0, len(corpus) - 1, config.plan.sample_passages).round().astype(np.int64))


def _rate(
    config: RunConfig, how: Arithmetic, read: Callable[..., Any], backbone: nn.Module, tokens: Tokens, pad_id: int
) -> TextRates:
    """Seconds of a text, from batches of the sample in a drawn order; or by the figures of a device."""
    import torch

    from raydr.models.batching import pad, plan_batches

    lengths = tokens.lengths
    batches = plan_batches(lengths, how.token_budget)
    padded = sum(int(lengths[rows].max()) * len(rows) for rows in batches) / tokens.num_rows
    order = np.random.default_rng(config.seed).permutation(len(batches))

    def run(chosen: int) -> int:
        batch = {key: value.to(how.device) for key, value in pad(tokens, batches[chosen], pad_id).items()}
        # The copy waits for the device.
        read(**batch).float().cpu()
        return batch["input_ids"].numel()

    if (figures := config.plan.device) is not None:
        seconds = _flops(backbone, float(lengths.mean())) / (figures.flops * figures.utilisation)
    else:
        with torch.inference_mode():
            for chosen in order[:_WARM_UP]:
                run(chosen)
            count, started = 0, time.perf_counter()
            for chosen in order:
                count += run(chosen)
                if time.perf_counter() - started > config.plan.probe_seconds:
                    break
            seconds = (time.perf_counter() - started) / count
    return TextRates(padded * seconds, padded * seconds, 0.0, float(lengths.max()) / padded)


def _flops(backbone: nn.Module, mean_tokens: float) -> float:
    """Operations of one token in a forward pass: 2 a weight of the layers (looking up embeddings takes none), and
    4 · length · width a layer for attention, its scores and its weighted sum."""
    from torch import nn

    tables = sum(module.weight.numel() for module in backbone.modules() if isinstance(module, nn.Embedding))
    shape: Any = backbone.config
    weights = sum(weights.numel() for weights in backbone.parameters()) - tables
    return 2.0 * weights + 4.0 * float(shape.num_hidden_layers * shape.hidden_size) * mean_tokens


def _in_int8(tower: Any, few: Tokens, pad_id: int) -> Any:
    """A copy of a tower whose encoder is in int8; a few texts are enough to learn how quick it is."""
    import torch

    from raydr.models.int8 import quantize

    copied = copy.deepcopy(tower).ready("cpu", torch.float32)
    with tempfile.TemporaryDirectory(prefix="raydr-") as folder:
        quantize(copied, few, pad_id, "passage", folder)
    return copied


class _Enough(Exception):
    """Enough steps were timed."""


class _Clock:
    """A listener of training that times its steps and ends it."""

    def __init__(self, seconds: float, device: str) -> None:
        self.seconds, self.device = seconds, device
        self.times: list[float] = []

    def on_step(self, *ignored: object) -> None:
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()
        self.times.append(time.perf_counter())
        if len(self.times) > _WARM_UP + 1 and self.times[-1] - self.times[_WARM_UP] > self.seconds:
            raise _Enough

    def on_detection(self, *ignored: object) -> None:
        """There is none."""

    def on_checkpoint(self, *ignored: object) -> None:
        """Nothing is kept."""

    def rates(self, run: Callable[[], object]) -> StepRates:
        """The median step of a training, so that one slow step does not count."""
        with contextlib.suppress(_Enough):
            run()
        times = self.times[min(_WARM_UP, len(self.times) - 2) :]
        return StepRates(float(np.median(np.diff(times))), _peak_and_device(None, self.device)[0])


def _train(
    config: RunConfig, corpus: Corpus, data: Dataset, share: int, model: ModelConfig, train: TrainConfig
) -> StepRates:
    """Train by plain NCE; hard negatives are drawn from the corpus."""
    from raydr.models.dual_encoder import DualEncoder, build_tokenizers
    from raydr.models.precision import resolve_dtype, torch_dtype
    from raydr.training.run import TrainingInputs, build_setup
    from raydr.training.trainer import Trainer

    _threads(train.cpus_per_worker)
    device, split = "cuda" if train.use_gpu else "cpu", config.data.train_split
    queries = data.queries(split).slice(0, _STEPS * share)
    tables = queries, of_queries(data.qrels(split), queries["query_id"]), data.negatives(split).slice(0, 0)
    clock = _Clock(config.plan.probe_seconds, device)
    setup = build_setup(
        train, config.seed, DualEncoder.from_config(model, config.seed).to(device), build_tokenizers(model),
        TrainingInputs(corpus, tables, None), torch_dtype(resolve_dtype(train.dtype, device)[0]), clock,
    )  # fmt: skip
    return clock.rates(Trainer(setup).run)


def _train_ranker(config: RunConfig, corpus: Corpus, data: Dataset, share: int) -> StepRates:
    """Train the ranker by plain NCE on one batch of lists of random passages, so that each epoch is a step."""
    from raydr.models.cross_encoder import CrossEncoder, PairTokenizer
    from raydr.models.precision import resolve_dtype, torch_dtype
    from raydr.training.cross_encoder import CrossEncoderTrainer

    _threads(config.train.cpus_per_worker)
    device, split = "cuda" if config.train.use_gpu else "cpu", config.data.train_split
    judged = relevant(data.qrels(split))
    queries = of_queries(data.queries(split), judged["query_id"].unique().slice(0, share))
    tables = queries, of_queries(judged, queries["query_id"]), data.negatives(split).slice(0, 0)
    size = queries.num_rows
    plain = {"loss": NCE(), "pair_detection": None, "num_epochs": 1000, "batch_size": size}
    plain["accumulation_steps"] = math.gcd(size, config.ranker.accumulation_steps)
    settings = config.ranker.model_copy(update=plain)
    clock = _Clock(config.plan.probe_seconds, device)
    model = CrossEncoder.from_config(settings.model, config.seed, section="ranker").to(device)
    trainer = CrossEncoderTrainer(
        settings, config.seed, model, PairTokenizer(settings.model), load_examples(*tables, corpus), corpus,
        torch_dtype(resolve_dtype(settings.dtype, device)[0]), clock.on_step,
    )  # fmt: skip
    return clock.rates(trainer.run)


def _search(dim: int) -> SearchRates:
    """Fill, write and search a small exact index with one thread."""
    load_faiss(num_threads=1)
    vectors = np.random.default_rng(0).standard_normal((_VECTORS, dim), dtype=np.float32)
    with tempfile.TemporaryDirectory(prefix="raydr-") as scratch:
        started = time.perf_counter()
        index = make_index("Flat", dim)
        index.add(vectors)
        write_index(index, f"{scratch}/probe.faiss")
        fill = time.perf_counter() - started
    index.search(vectors[:_SEARCHED], 10)
    started = time.perf_counter()
    index.search(vectors[:_SEARCHED], 100)
    return SearchRates(_VECTORS * _SEARCHED * dim / (time.perf_counter() - started), vectors.nbytes / fill)


def _threads(cpus: float) -> None:
    import torch

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(max(1, int(cpus)))


def _peak_and_device(figures: DeviceFigures | None, device: str) -> tuple[int | None, str]:
    """Memory at its peak, of the device on a GPU, of this process otherwise, and what the device is called."""
    if figures is not None:
        return None, figures.name
    if device == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated()), torch.cuda.get_device_name()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "this machine's CPU"
