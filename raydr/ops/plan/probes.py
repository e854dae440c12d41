"""Probes of a plan: how fast a worker encodes texts, reads pairs, takes training steps and searches an index."""

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
from typing import TYPE_CHECKING, Any

import numpy as np

from raydr.config.plan import DeviceFigures
from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.examples import load_examples
from raydr.data.tables import of_queries, relevant
from raydr.distributed.arithmetic import Arithmetic
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


def read_texts(config: RunConfig, corpus: Corpus, data: Dataset, settings: ModelConfig, how: Arithmetic) -> ModelRates:
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


def read_pairs(config: RunConfig, corpus: Corpus, data: Dataset, settings: Any, how: Arithmetic) -> ModelRates:
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


def train(
    config: RunConfig, corpus: Corpus, data: Dataset, share: int, model: ModelConfig, train: TrainConfig
) -> StepRates:
    """Train by plain NCE; hard negatives are drawn from the corpus."""
    from raydr.models.dual_encoder import DualEncoder, build_tokenizers
    from raydr.models.precision import resolve_dtype, torch_dtype
    from raydr.training.run import TrainingInputs, build_trainer

    _threads(train.cpus_per_worker)
    device, split = "cuda" if train.use_gpu else "cpu", config.data.train_split
    queries = data.queries(split).slice(0, _STEPS * share)
    tables = queries, of_queries(data.qrels(split), queries["query_id"]), data.negatives(split).slice(0, 0)
    clock = _Clock(config.plan.probe_seconds, device)
    trainer = build_trainer(
        train, config.seed, DualEncoder.from_config(model, config.seed).to(device), build_tokenizers(model),
        TrainingInputs(corpus, load_examples(*tables, corpus)),
        torch_dtype(resolve_dtype(train.dtype, device)[0]), clock,
    )  # fmt: skip
    return clock.rates(trainer.run)


def train_ranker(config: RunConfig, corpus: Corpus, data: Dataset, share: int) -> StepRates:
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


def search(dim: int) -> SearchRates:
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
