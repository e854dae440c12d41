"""Measurements of a plan; each runs once, in a Ray task with the resources of the worker whose rate it measures.

A measurement encodes or scores a sample, runs steps of the trainer, or searches a small index, with the same code as a
run. It therefore has the start-up time and the peak memory of such a worker.
"""

from __future__ import annotations

import contextlib
import os
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from raydr.config.files import merged
from raydr.config.run import RunConfig
from raydr.console import say
from raydr.data import Corpus, Dataset
from raydr.data.examples import load_examples
from raydr.data.rows import join_passage
from raydr.data.tables import of_queries
from raydr.distributed.arithmetic import Arithmetic, resolve_arithmetic
from raydr.distributed.cluster import stage_labels, start_ray
from raydr.distributed.failures import worker_errors
from raydr.distributed.ray_pool import RayPool
from raydr.indexing.build import write_index
from raydr.indexing.faiss_backend import load_faiss, make_index
from raydr.models.backbone import choose_what_learns, num_learning
from raydr.models.config import CrossEncoderConfig, ModelConfig, Side
from raydr.models.cross_encoder import CrossEncoder, CrossEncoderScorer, PairTokenizer
from raydr.models.dual_encoder import DualEncoder, build_tokenizers, load_tokenizer, load_tower
from raydr.models.inference import InferenceEncoder
from raydr.models.int8 import quantize
from raydr.models.precision import resolve_dtype, torch_dtype
from raydr.models.tokens import Tokens
from raydr.negatives.bm25 import CorpusStatistics, build_shard
from raydr.negatives.terms import Analyzer
from raydr.training.config import TrainConfig
from raydr.training.run import TrainingInputs, build_trainer

T = TypeVar("T")
#: Steps and rows before timing starts: they select kernels and allocate memory.
_WARM_UP, _FEW = 2, 32
#: Maximal number of sampled queries; steps before queries repeat; vectors and queries of the measured search.
_QUERIES, _STEPS, _VECTORS, _SEARCHED = 1000, 8, 20_000, 256


class Reading(NamedTuple):
    """Seconds of one worker for a text (a passage, a query, or a pair of both), and the text's stored vectors."""

    tokenize: float
    encode: float
    vectors: float = 1.0
    #: Tokens of the longest text over those of the mean text: the cost of padding to the longest.
    longest: float = 1.0


@dataclass(frozen=True)
class Rates:
    """Measured cost of one worker that encodes or scores with a model.

    Args:
        texts: by kind: ``passage`` and ``query`` of a retriever, ``pair`` of a ranker.
        dim: dimension of a vector.
        num_parameters: number of parameters of the model.
        num_learning: number of parameters that training changes, adapters included.
        device: name of the device.
        peak_bytes: peak memory of the worker.
        load_seconds: time in which a worker starts and loads the model.
    """

    texts: dict[str, Reading]
    dim: int
    num_parameters: int
    num_learning: int
    device: str
    peak_bytes: int
    load_seconds: float = 0.0


class Steps(NamedTuple):
    """Seconds and peak memory of a training step with plain NCE on one worker's share of a batch."""

    seconds: float
    peak_bytes: int


class SearchRates(NamedTuple):
    """Rates of one FAISS thread: multiplications per second, and bytes per second added to an index and written."""

    products: float
    fill_bytes: float


class TermRates(NamedTuple):
    """Seconds of one thread to cut a passage into terms and to index it, and the bytes of its terms."""

    cut_seconds: float
    index_seconds: float
    term_bytes: float


class Trials:
    """Measurements of a plan; each runs on first use, once.

    Args:
        config: config of the run; its section ``plan`` sets sample sizes and times.
        corpus: the prepared corpus, from which passages are sampled evenly.
        data: the prepared queries.
    """

    def __init__(self, config: RunConfig, corpus: Corpus, data: Dataset) -> None:
        self._inputs = config, corpus, data
        self._done: dict[str, Any] = {}

    def retriever(self, model: ModelConfig) -> Rates:
        """Measure the encoding of passages and queries with a dual encoder."""
        return self._read(_read_texts, "texts are encoded", model)

    def ranker(self) -> Rates:
        """Measure the scoring of pairs with the config's ranker."""
        return self._read(_read_pairs, "pairs are scored by the ranker", self._inputs[0].ranker.model)

    def steps(self, model: ModelConfig, train: TrainConfig) -> Steps:
        """Measure the training steps of a dual encoder."""
        share = max(2, train.batch_size // train.fewest_workers)
        # A micro-batch needs at least two queries.
        fitting = (n for n in range(1, train.accumulation_steps + 1) if share % n == 0 and share // n >= 2)
        plain = {
            "loss": {"name": "nce"}, "pair_detection": None, "coteaching": None, "guide": None, "batch_size": share,
            "num_workers": 1, "num_epochs": 1000, "log_steps": 10**6, "share_warmup": None, "keep": "last",
            "dev": {}, "accumulation_steps": max(fitting),
        }  # fmt: skip
        settings = TrainConfig.model_validate(merged(train.model_dump(), plain))
        what = f"training steps of {share} queries"
        return self._run(train.cpus_per_worker, int(train.use_gpu), what, _train, *self._inputs, model, settings)[0]

    def search(self, dim: int) -> SearchRates:
        """Measure the exact search of FAISS."""
        return self._run(1, 0, "an index is filled and searched", _search, dim)[0]

    def terms(self) -> TermRates:
        """Measure the indexing of passages by BM25."""
        return self._run(1, 0, "passages are indexed by BM25", _index_terms, *self._inputs[:2])[0]

    def _read(self, trial: Callable[..., Rates], what: str, model: ModelConfig | CrossEncoderConfig) -> Rates:
        encode = self._inputs[0].encode
        with worker_errors():
            start_ray()
            arithmetic = resolve_arithmetic(encode, RayPool())
        dtype = encode.dtype if encode.dtype == "int8" else arithmetic.dtype
        action = f"{what} with {dtype} on {arithmetic.device}"
        rates, seconds = self._run(
            encode.cpus_per_actor, encode.gpus_per_actor, action, trial, *self._inputs, model, arithmetic
        )
        return replace(rates, load_seconds=seconds)

    def _run(self, cpus: float, gpus: float, what: str, trial: Callable[..., T], *arguments: Any) -> tuple[T, float]:
        """Run a trial in its own worker; return its result and the seconds in which the worker started."""
        key = f"{trial.__name__} {arguments}"
        if key not in self._done:
            start_ray()
            import ray

            say(f"plan: {what}")
            started = time.perf_counter()
            with worker_errors():
                # A new worker for each call: start-up and peak memory must be of this trial alone.
                task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_calls=1, label_selector=stage_labels())(_timed)
                result, seconds = ray.get(task.remote(trial, max(1, int(cpus)), *arguments))
            self._done[key] = result, max(0.0, time.perf_counter() - started - seconds)
        measured: tuple[T, float] = self._done[key]
        return measured


def _timed(trial: Callable[..., T], num_threads: int, *arguments: Any) -> tuple[T, float]:
    started = time.perf_counter()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(num_threads)
    return trial(*arguments), time.perf_counter() - started


def _read_texts(
    config: RunConfig, corpus: Corpus, data: Dataset, settings: ModelConfig, arithmetic: Arithmetic
) -> Rates:
    """Tokenise and encode passages and queries of a sample."""

    encode, at_least = config.encode, config.plan.probe_seconds

    def read(folder: str, side: Side, titles: list[str] | None, texts: list[str]) -> Reading:
        tokenizer, quantized = load_tokenizer(folder, side), ""

        def tokenize(num: int) -> Tokens:
            return tokenizer(titles and titles[:num], texts[:num])

        if side == "passage" and encode.dtype == "int8":
            quantized, tower = f"{folder}/int8", load_tower(folder, side).ready("cpu", torch.float32)
            quantize(tower, tokenize(_FEW), tokenizer.pad_id, side, quantized)
        encoder = InferenceEncoder(
            folder, side, arithmetic.dtype, arithmetic.device, arithmetic.token_budget, quantized=quantized
        )
        most = settings.vectors(side).most
        vectors = np.mean([most(int(length)) for length in tokenize(len(texts)).lengths])
        tokenizing = _seconds_a_row(tokenize, len(texts), at_least)
        both = _seconds_a_row(lambda num: encoder.encode(tokenize(num)), len(texts), at_least)
        return Reading(tokenizing, max(both - tokenizing, 1e-9), float(vectors))

    passages = _sampled(config, corpus)
    split = next(split for split in (*config.data.test_splits, config.data.train_split) if split in data.splits)
    queries = data.queries(split)["text"].slice(0, _QUERIES).to_pylist() or passages.texts
    model = DualEncoder.from_config(settings, config.seed)
    dim, num_parameters = model.dim, sum(weights.numel() for weights in model.parameters())
    with tempfile.TemporaryDirectory(prefix="raydr-") as folder:
        model.save(folder, build_tokenizers(settings))
        choose_what_learns(model, config.train.optimizer, config.seed, "train.optimizer")
        learning = num_learning(model)
        # Free the model: the peak memory must be that of an encoder alone.
        del model
        texts = {"passage": read(folder, "passage", passages.titles, passages.texts)}
        texts["query"] = read(folder, "query", None, queries)
    return Rates(texts, dim, num_parameters, learning, *_device_and_peak(arithmetic.device))


def _read_pairs(
    config: RunConfig, corpus: Corpus, data: Dataset, settings: CrossEncoderConfig, arithmetic: Arithmetic
) -> Rates:
    """Score pairs of queries with passages of a sample."""

    passages = _sampled(config, corpus)
    queries = data.queries(config.data.train_split)["text"].slice(0, _QUERIES).to_pylist()
    rows = np.arange(len(passages.texts))
    model = CrossEncoder.from_config(settings, config.seed, section="ranker")
    num_parameters = sum(weights.numel() for weights in model.parameters())
    with tempfile.TemporaryDirectory(prefix="raydr-") as folder:
        model.save(folder, PairTokenizer(settings))
        del model
        scorer = CrossEncoderScorer(folder, arithmetic.dtype, arithmetic.device, arithmetic.token_budget)

    def score(num: int) -> None:
        scorer.score(queries, passages, rows[:num] % len(queries), rows[:num])

    num = min(len(queries), len(rows))
    lengths = scorer.tokenizer(queries[:num], passages.titles[:num], passages.texts[:num]).lengths
    pair = Reading(
        0.0, _seconds_a_row(score, len(rows), config.plan.probe_seconds), 1.0, lengths.max() / lengths.mean()
    )
    return Rates({"pair": pair}, 1, num_parameters, num_parameters, *_device_and_peak(arithmetic.device))


def _sampled(config: RunConfig, corpus: Corpus) -> Any:
    """Return passages spread evenly over the corpus, in random order, so that any prefix is a sample too."""
    rows = np.unique(np.linspace(0, len(corpus) - 1, config.plan.sample_passages).round().astype(np.int64))
    return corpus.texts(np.random.default_rng(config.seed).permutation(rows))


def _seconds_a_row(work: Callable[[int], object], num_rows: int, at_least: float) -> float:
    """Time work on the first rows; take more rows until it lasts about ``at_least`` seconds or all are taken."""
    num = min(_FEW, num_rows)
    work(num)
    while True:
        started = time.perf_counter()
        work(num)
        seconds = time.perf_counter() - started
        if seconds >= at_least / 2 or num == num_rows:
            return seconds / num
        num = min(num_rows, max(2 * num, int(num * at_least / seconds)))


class _Enough(Exception):
    """End of the training: enough steps were timed."""


def _train(config: RunConfig, corpus: Corpus, data: Dataset, model: ModelConfig, train: TrainConfig) -> Steps:
    """Measure the median training step with plain NCE, with hard negatives drawn from the corpus."""

    times: list[float] = []

    def on_step(*ignored: object) -> None:
        if train.use_gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter())
        if len(times) > _WARM_UP + 1 and times[-1] - times[_WARM_UP] > config.plan.probe_seconds:
            raise _Enough

    device, split = "cuda" if train.use_gpu else "cpu", config.data.train_split
    queries = data.queries(split).slice(0, _STEPS * train.batch_size)
    tables = queries, of_queries(data.qrels(split), queries["query_id"]), data.negatives(split).slice(0, 0)
    listener: Any = SimpleNamespace(on_step=on_step, on_checkpoint=lambda *ignored: None)
    network, dtype = DualEncoder.from_config(model, config.seed).to(device), resolve_dtype(train.dtype, device)[0]
    inputs, tokenizers = TrainingInputs(corpus, load_examples(*tables, corpus)), build_tokenizers(model)
    trainer = build_trainer(train, config.seed, network, tokenizers, inputs, torch_dtype(dtype), listener)
    with contextlib.suppress(_Enough):
        trainer.run()
    steps = np.diff(times[min(_WARM_UP, len(times) - 2) :])
    return Steps(float(np.median(steps)), _device_and_peak(device)[1])


def _index_terms(config: RunConfig, corpus: Corpus) -> TermRates:
    """Cut passages of a sample into terms, and index them."""
    passages, analyzer = _sampled(config, corpus), Analyzer(config.bm25)
    texts = list(map(join_passage, passages.titles, passages.texts))
    counts = analyzer.count(texts)
    statistics = CorpusStatistics(len(texts), counts.num_tokens, [counts.frequencies()])
    with tempfile.TemporaryDirectory(prefix="raydr-") as scratch:
        started = time.perf_counter()
        build_shard([lambda: counts], statistics, config.bm25, scratch)
        index = (time.perf_counter() - started) / len(texts)
    cut = _seconds_a_row(lambda num: analyzer.count(texts[:num]), len(texts), config.plan.probe_seconds)
    return TermRates(cut, index, counts.num_bytes / len(texts))


def _search(dim: int) -> SearchRates:
    """Fill, write and search a small exact index with one thread."""
    load_faiss().omp_set_num_threads(1)
    vectors = np.random.default_rng(0).standard_normal((_VECTORS, dim), dtype=np.float32)
    with tempfile.TemporaryDirectory(prefix="raydr-") as scratch:
        started = time.perf_counter()
        index = make_index("Flat", dim)
        index.add(vectors)
        write_index(index, f"{scratch}/trial.faiss")
        fill = time.perf_counter() - started
    seconds = _seconds_a_row(lambda num: index.search(vectors[:num], 100), _SEARCHED, 0.5)
    return SearchRates(_VECTORS * dim / seconds, vectors.nbytes / fill)


def _device_and_peak(device: str) -> tuple[str, int]:
    """Return the device's name and the peak memory: of the GPU if there is one, of this process otherwise."""
    if device == "cuda":
        return torch.cuda.get_device_name(), int(torch.cuda.max_memory_allocated())
    return "this machine's CPU", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
