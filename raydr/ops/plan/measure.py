"""Try a run's model with the resources of its workers, on texts of its corpus: what planning rests on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.ops.plan.probe import probe_encoding, probe_ranker, probe_ranker_training, probe_search, probe_training
from raydr.ops.plan.rates import EncodingRates, RankerRates, RunRates, TrainingRates
from raydr.runtime.cluster import start_ray
from raydr.runtime.console import say
from raydr.stages.arithmetic import resolve_arithmetic
from raydr.stages.failures import worker_errors
from raydr.stages.ray_pool import RayPool

T = TypeVar("T")


def try_model(config: RunConfig, corpus: Corpus, data: Dataset, ranker: bool) -> RunRates:
    """Measure how fast this run's workers are.

    Args:
        config: the run; its section ``plan`` says for how long it is tried, or has figures of another device.
        corpus: the prepared corpus, from which passages are sampled evenly.
        data: the prepared queries.
        ranker: try the config's cross-encoder too.

    Raises:
        ConfigError: the cluster has not the resources of one worker.
        ModelError: the model cannot be loaded.
    """
    start_ray()
    with worker_errors():
        dtype, device = _arithmetic(config)
        encoding = _try_encoding(config, corpus, data, dtype, device)
        training = _try_training(config, corpus, data, encoding)
        search, _ = _run(probe_search, 1, 0, encoding.dim)
        reading = _try_ranker(config, corpus, data, dtype, device) if ranker else None
    return RunRates(encoding, training, search, reading)


def _arithmetic(config: RunConfig) -> tuple[str, str]:
    """In which type, and where, texts are encoded and pairs are read; of no account with another device's figures."""
    if config.plan.device is not None:
        return "float32", "cpu"
    arithmetic = resolve_arithmetic(config.encode, RayPool())
    return arithmetic.dtype, arithmetic.device


def _try_ranker(config: RunConfig, corpus: Corpus, data: Dataset, dtype: str, device: str) -> RankerRates:
    say("plan: the ranker reads some queries with passages")
    found, seconds = _run(probe_ranker, *_of_encoder(config), config, corpus, data, dtype, device)
    reading, ranker, train = replace(found, load_seconds=seconds), config.ranker, config.train
    share = max(1, ranker.batch_size // train.fewest_workers)
    if config.plan.device is not None:
        # Three forward passes of lists, which are padded to their longest pair.
        num_tokens = share * ranker.passages_per_query * reading.longest_tokens
        return RankerRates(reading, TrainingRates(3 * num_tokens / reading.tokens_per_second, None))
    say(f"plan: its training is tried with {share} lists a step, a worker's share of {ranker.batch_size}")
    trainer = train.cpus_per_worker, int(train.use_gpu)
    training, _ = _run(probe_ranker_training, *trainer, config, corpus, data, share)
    return RankerRates(reading, training)


def _of_encoder(config: RunConfig) -> tuple[float, float]:
    """CPUs and GPUs of an encoder; none of these where another device's figures are taken."""
    return config.encode.cpus_per_actor, 0 if config.plan.device else config.encode.gpus_per_actor


def _try_encoding(config: RunConfig, corpus: Corpus, data: Dataset, dtype: str, device: str) -> EncodingRates:
    figures = config.plan.device
    say(
        f"plan: {config.plan.sample_passages:,} passages are tokenised, and some encoded "
        + (f"with {dtype} on {device}" if figures is None else f"by the figures of {figures.name}")
    )
    rates, seconds = _run(probe_encoding, *_of_encoder(config), config, corpus, data, dtype, device)
    return replace(rates, load_seconds=seconds)


def _try_training(config: RunConfig, corpus: Corpus, data: Dataset, encoding: EncodingRates) -> TrainingRates:
    train = config.train
    share = max(2, train.batch_size // train.fewest_workers)
    if config.plan.device is not None:
        # Three forward passes: one, and the backward pass that costs two.
        group = encoding.queries.padded_tokens + train.passages_per_query * encoding.passages.padded_tokens
        return TrainingRates(3 * share * group / encoding.tokens_per_second, None)
    say(f"plan: training is tried with {share} queries a step, a worker's share of {train.batch_size}")
    rates, _ = _run(probe_training, train.cpus_per_worker, int(train.use_gpu), config, corpus, data, share)
    return rates


def _run(probe: Callable[..., T], cpus: float, gpus: float, *arguments: Any) -> tuple[T, float]:
    """Run a trial in a worker of its own; returns its result, and the seconds that the worker needed to start."""
    import ray

    started = time.perf_counter()
    # One call a worker, so that each starts afresh and its peak of memory is its own.
    task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_calls=1)(_timed)
    result, seconds = ray.get(task.remote(probe, *arguments))
    return result, max(0.0, time.perf_counter() - started - seconds)


def _timed(probe: Callable[..., T], *arguments: Any) -> tuple[T, float]:
    """The result, and the seconds that were spent trying."""
    started = time.perf_counter()
    return probe(*arguments), time.perf_counter() - started
