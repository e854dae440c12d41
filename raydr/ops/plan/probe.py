"""Short trials of the real model on real texts of the corpus: what one worker does here. Needs no Ray."""

from __future__ import annotations

import contextlib
import copy
import math
import os
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from raydr.config.overrides import merged
from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.examples import load_examples
from raydr.data.tables import of_queries, relevant
from raydr.indexing.backend import load_faiss
from raydr.indexing.build import write_index
from raydr.indexing.factory import make_index
from raydr.losses.nce import NCE
from raydr.models.learning import choose_what_learns, num_learning
from raydr.models.token_pooling import pooled_count
from raydr.models.tokens import Tokens
from raydr.ops.plan.rates import EncodingRates, PairRates, SearchRates, TextSample, TrainingRates, encoder_flops
from raydr.training.config import TrainConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from raydr.models.scores.base import Vectors
    from raydr.models.tower import Tower
    from raydr.training.checkpoint import Progress, Save
    from raydr.training.detection import PairFlags

#: Batches and steps before the clock starts: kernels are chosen and memory is found in them.
_WARM_UP = 2
#: Queries that the sample has, at most.
_SAMPLE_QUERIES = 1000
#: Steps that training is tried on before its queries repeat.
_STEPS = 8
#: Vectors and queries of the search trial.
_VECTORS, _QUERIES = 20_000, 256


def probe_encoding(config: RunConfig, corpus: Corpus, data: Dataset, dtype: str, device: str) -> EncodingRates:
    """Tokenise ``plan.sample_passages`` and encode some of their batches, for ``plan.probe_seconds``.

    Args:
        config: the run; with figures of a device that is not here nothing is encoded.
        corpus: from which passages are sampled evenly.
        data: whose queries are tokenised.
        dtype: arithmetic of the encoder.
        device: ``cpu`` or ``cuda``.
    """
    import torch

    from raydr.models.dual_encoder import DualEncoder, build_tokenizers
    from raydr.models.precision import torch_dtype

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(max(1, int(config.encode.cpus_per_actor)))
    figures = config.plan.device
    rows = np.unique(np.linspace(0, len(corpus) - 1, config.plan.sample_passages).round().astype(np.int64))
    texts = corpus.texts(rows)
    split = next(one for one in (*config.data.test_splits, config.data.train_split) if one in data.splits)
    queries = data.queries(split)["text"].slice(0, _SAMPLE_QUERIES).to_pylist()
    tokenizers = build_tokenizers(config.model)
    # The first call loads tables.
    tokenizers["passage"](texts.titles[:10], texts.texts[:10])
    started = time.perf_counter()
    tokens = tokenizers["passage"](texts.titles, texts.texts)
    texts_per_second = len(rows) / (time.perf_counter() - started)
    budget = config.encode.batch_tokens("cpu" if figures is None and device == "cpu" else "cuda")
    passages = _describe(tokens, budget, config.model.vectors("passage"), config.encode.token_pooling)
    asked = _describe(tokenizers["query"](None, queries) if queries else tokens, budget, config.model.vectors("query"))
    model = DualEncoder.from_config(config.model, config.seed)
    tower = model.tower("passage")
    num_parameters = sum(weights.numel() for weights in model.parameters())
    int8_tokens_per_second = None
    if figures is not None:
        flops = _flops(tower.backbone, passages.mean_tokens)
        tokens_per_second, peak, name = figures.flops * figures.utilisation / flops, None, figures.name
    else:
        tower = tower.ready(device, torch_dtype(dtype))
        pad_id = tokenizers["passage"].pad_id
        read = partial(tower, side="passage")
        tokens_per_second = _read(read, device, tokens, budget, pad_id, config)
        if config.encode.dtype == "int8":
            in_int8 = _in_int8(tower, tokenizers["passage"](texts.titles[:10], texts.texts[:10]), pad_id)
            read = partial(in_int8, side="passage")
            int8_tokens_per_second = _read(read, device, tokens, budget, pad_id, config)
        peak, name = _peak_bytes(device), torch.cuda.get_device_name() if device == "cuda" else "this machine's CPU"
    choose_what_learns(model, config.train.optimizer, config.seed, "train.optimizer")
    return EncodingRates(
        passages=passages, queries=asked, dim=model.dim, num_parameters=num_parameters,
        num_learning=num_learning(model),
        tokens_per_second=tokens_per_second, texts_per_second=texts_per_second, load_seconds=0.0,
        peak_bytes=peak, device=name, int8_tokens_per_second=int8_tokens_per_second,
    )  # fmt: skip


def probe_ranker(config: RunConfig, corpus: Corpus, data: Dataset, dtype: str, device: str) -> PairRates:
    """Tokenise queries with passages, and read some of their batches; arguments as of :func:`probe_encoding`."""
    import torch

    from raydr.models.cross_encoder import CrossEncoder, PairTokenizer
    from raydr.models.precision import torch_dtype

    torch.set_num_threads(max(1, int(config.encode.cpus_per_actor)))
    figures, settings = config.plan.device, config.ranker.model
    rows = np.unique(np.linspace(0, len(corpus) - 1, config.plan.sample_passages).round().astype(np.int64))
    texts, queries = corpus.texts(rows), data.queries(config.data.train_split)["text"].slice(0, _SAMPLE_QUERIES)
    asked = [queries[at % len(queries)].as_py() for at in range(len(rows))]
    tokenizer = PairTokenizer(settings)
    tokens = tokenizer(asked, texts.titles, texts.texts)
    budget = config.encode.batch_tokens("cpu" if figures is None and device == "cpu" else "cuda")
    model = CrossEncoder.from_config(settings, config.seed, section="ranker")
    mean_tokens = float(tokens.lengths.mean())
    if figures is not None:
        rate, peak = figures.flops * figures.utilisation / _flops(model.classifier, mean_tokens), None
    else:
        model.to(device=device, dtype=torch_dtype(dtype)).eval()
        rate = _read(model, device, tokens, budget, tokenizer.pad_id, config)
        peak = _peak_bytes(device)
    num_parameters = sum(weights.numel() for weights in model.parameters())
    return PairRates(
        mean_tokens=mean_tokens, padded_tokens=_padded_tokens(tokens, budget),
        longest_tokens=float(tokens.lengths.max()), num_parameters=num_parameters,
        tokens_per_second=rate, load_seconds=0.0, peak_bytes=peak,
    )  # fmt: skip


def _flops(backbone: nn.Module, mean_tokens: float) -> float:
    """Operations of one token; looking up embeddings takes none."""
    from torch import nn

    tables = [module for module in backbone.modules() if isinstance(module, nn.Embedding)]
    num_weights = sum(one.numel() for one in backbone.parameters()) - sum(one.weight.numel() for one in tables)
    shape: Any = backbone.config
    return encoder_flops(num_weights, int(shape.num_hidden_layers), int(shape.hidden_size), mean_tokens)


def _in_int8(tower: Tower, tokens: Tokens, pad_id: int) -> Tower:
    """A copy of a tower whose encoder is in int8; a few texts are enough to learn how quick it is."""
    import torch

    from raydr.models.int8 import quantize

    copied = copy.deepcopy(tower).ready("cpu", torch.float32)
    with tempfile.TemporaryDirectory(prefix="raydr-") as folder:
        quantize(copied, tokens, pad_id, "passage", folder)
    return copied


def _read(
    model: Callable[..., Tensor], device: str, tokens: Tokens, budget: int, pad_id: int, config: RunConfig
) -> float:
    """Padded tokens a second, from batches of the sample in a drawn order."""
    import torch

    from raydr.models.batching import pad, plan_batches

    batches = plan_batches(tokens.lengths, budget)
    order = np.random.default_rng(config.seed).permutation(len(batches))

    def run(chosen: int) -> int:
        batch = {key: value.to(device) for key, value in pad(tokens, batches[chosen], pad_id).items()}
        # The copy waits for the device.
        model(**batch).float().cpu()
        return batch["input_ids"].numel()

    with torch.inference_mode():
        for chosen in order[:_WARM_UP]:
            run(chosen)
        count = 0
        started = time.perf_counter()
        for chosen in order:
            count += run(chosen)
            if time.perf_counter() - started > config.plan.probe_seconds:
                break
        return count / (time.perf_counter() - started)


def _describe(tokens: Tokens, budget: int, vectors: Vectors, pooling: int = 1) -> TextSample:
    lengths = tokens.lengths
    mean_vectors = float(np.mean([pooled_count(vectors.most(int(length)), pooling) for length in lengths]))
    return TextSample(float(lengths.mean()), _padded_tokens(tokens, budget), mean_vectors)


def _padded_tokens(tokens: Tokens, budget: int) -> float:
    """Mean tokens of a text with the padding of its batch."""
    from raydr.models.batching import plan_batches

    lengths = tokens.lengths
    return sum(int(lengths[rows].max()) * len(rows) for rows in plan_batches(lengths, budget)) / tokens.num_rows


class _Stop(Exception):
    """Enough steps were timed."""


class _Clock:
    """A listener of training that times steps and ends it."""

    def __init__(self, seconds: float, wait: Callable[[], None]) -> None:
        self.seconds = seconds
        self.wait = wait
        self.times: list[float] = []

    def on_step(self, progress: Progress, num_steps: int, metrics: dict[str, float]) -> None:
        self.wait()
        self.times.append(time.perf_counter())
        if len(self.times) > _WARM_UP + 1 and self.times[-1] - self.times[_WARM_UP] > self.seconds:
            raise _Stop

    def on_detection(self, progress: Progress, flags: PairFlags) -> None:
        """There is none."""

    def on_checkpoint(self, progress: Progress, copy: Callable[[], Save]) -> None:
        """Nothing is kept."""

    def step_seconds(self) -> float:
        """The median, so that one slow step does not count."""
        times = self.times[min(_WARM_UP, len(self.times) - 2) :]
        return float(np.median(np.diff(times)))


def probe_training(config: RunConfig, corpus: Corpus, data: Dataset, share: int) -> TrainingRates:
    """Train by plain NCE for ``plan.probe_seconds``; hard negatives are drawn from the corpus.

    Args:
        config: the run.
        corpus: the passages.
        data: queries and judgments, of which some steps are taken.
        share: queries of a batch that one worker has.
    """
    import torch

    from raydr.models.dual_encoder import DualEncoder, build_tokenizers
    from raydr.models.precision import resolve_dtype, torch_dtype
    from raydr.training.run import TrainingInputs, build_setup
    from raydr.training.trainer import Trainer

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(max(1, int(config.train.cpus_per_worker)))
    device = "cuda" if config.train.use_gpu else "cpu"
    # As far as each micro-batch of this share keeps the two queries that it needs.
    accumulation = max(
        steps for steps in range(1, config.train.accumulation_steps + 1) if share % steps == 0 and share // steps >= 2
    )
    plain = {
        "loss": {"name": "nce"}, "pair_detection": None, "coteaching": None, "batch_size": share, "num_workers": 1,
        "num_epochs": 1000, "log_steps": 10**6, "share_warmup": None,
        "accumulation_steps": accumulation,
    }  # fmt: skip
    train = TrainConfig.model_validate(merged(config.train.model_dump(), plain))
    model = DualEncoder.from_config(config.model, config.seed).to(device)
    clock = _Clock(config.plan.probe_seconds, lambda: _wait(device))
    dtype, split = torch_dtype(resolve_dtype(train.dtype, device)[0]), config.data.train_split
    queries = data.queries(split).slice(0, _STEPS * share)
    qrels = of_queries(data.qrels(split), queries["query_id"])
    inputs = TrainingInputs(corpus, (queries, qrels, data.negatives(split).slice(0, 0)), None)
    setup = build_setup(train, config.seed, model, build_tokenizers(config.model), inputs, dtype, clock)
    with contextlib.suppress(_Stop):
        Trainer(setup).run()
    return TrainingRates(clock.step_seconds(), _peak_bytes(device))


def probe_ranker_training(config: RunConfig, corpus: Corpus, data: Dataset, share: int) -> TrainingRates:
    """Train the ranker by plain NCE for ``plan.probe_seconds``, on lists of random passages; arguments as of
    :func:`probe_training`."""
    import torch

    from raydr.models.cross_encoder import CrossEncoder, PairTokenizer
    from raydr.models.precision import resolve_dtype, torch_dtype
    from raydr.training.cross_encoder import CrossEncoderTrainer

    torch.set_num_threads(max(1, int(config.train.cpus_per_worker)))
    device, split = "cuda" if config.train.use_gpu else "cpu", config.data.train_split
    # One batch, so that each epoch is a step.
    judged = relevant(data.qrels(split))
    queries = of_queries(data.queries(split), judged["query_id"].unique().slice(0, share))
    tables = queries, of_queries(judged, queries["query_id"]), data.negatives(split).slice(0, 0)
    plain = {
        "loss": NCE(), "pair_detection": None, "num_epochs": 1000, "batch_size": queries.num_rows,
        "accumulation_steps": math.gcd(queries.num_rows, config.ranker.accumulation_steps),
    }  # fmt: skip
    settings = config.ranker.model_copy(update=plain)
    clock = _Clock(config.plan.probe_seconds, lambda: _wait(device))
    trainer = CrossEncoderTrainer(
        settings,
        config.seed,
        CrossEncoder.from_config(settings.model, config.seed, section="ranker").to(device),
        PairTokenizer(settings.model),
        load_examples(*tables, corpus),
        corpus,
        torch_dtype(resolve_dtype(settings.dtype, device)[0]),
        lambda progress, copy: clock.on_step(progress, 1, {}),
    )
    with contextlib.suppress(_Stop):
        trainer.run()
    return TrainingRates(clock.step_seconds(), _peak_bytes(device))


def probe_search(dim: int) -> SearchRates:
    """Fill, write and search a small exact index with one thread."""
    load_faiss(num_threads=1)
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((_VECTORS, dim), dtype=np.float32)
    with tempfile.TemporaryDirectory(prefix="raydr-") as scratch:
        started = time.perf_counter()
        index = make_index("Flat", dim)
        index.add(vectors)
        write_index(index, f"{scratch}/probe.faiss")
        fill = time.perf_counter() - started
    index.search(vectors[:_QUERIES], 10)
    started = time.perf_counter()
    index.search(vectors[:_QUERIES], 100)
    seconds = time.perf_counter() - started
    return SearchRates(_VECTORS * _QUERIES * dim / seconds, vectors.nbytes / fill)


def _wait(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def _peak_bytes(device: str) -> int:
    """Memory at its peak: of the device on a GPU, of this process otherwise."""
    if device == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
