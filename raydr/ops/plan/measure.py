"""Try a run's model with the resources of its workers, on texts of its corpus: what planning rests on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.compute as pc

from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.ops.plan.estimate import RunSizes
from raydr.ops.plan.rates import EncodingRates, RunRates, SearchRates, TrainingRates
from raydr.runtime.cluster import start_ray
from raydr.runtime.console import say
from raydr.stages.arithmetic import resolve_arithmetic
from raydr.stages.failures import worker_errors
from raydr.stages.ray_pool import RayPool
from raydr.store.folder import Folder

#: Queries that the sample reads, at most.
_QUERIES = 1000
#: Steps that training is tried on before its queries repeat.
_STEPS = 8


def try_model(config: RunConfig, corpus: Folder, dataset: Folder, sizes: RunSizes) -> RunRates:
    """Measure how fast this run's workers are.

    Args:
        config: the run; its section ``plan`` says for how long it is tried, or has figures of another device.
        corpus: the prepared corpus, from which passages are sampled evenly.
        dataset: the prepared queries.
        sizes: names the splits.

    Raises:
        ConfigError: the cluster has not the resources of one worker.
        ModelError: the model cannot be loaded.
    """
    start_ray()
    with worker_errors():
        encoding = _try_encoding(config, corpus, dataset, sizes)
        training = _try_training(config, corpus, dataset, encoding)
        search, _ = _run(_search, 1, 0, encoding.dim)
    return RunRates(encoding, training, search)


def _try_encoding(config: RunConfig, corpus: Folder, dataset: Folder, sizes: RunSizes) -> EncodingRates:
    settings, figures = config.encode, config.plan.device
    device, dtype = "cpu", "float32"
    if figures is None:
        arithmetic = resolve_arithmetic(settings, RayPool())
        device, dtype = arithmetic.device, arithmetic.dtype
    splits = [*config.data.test_splits, config.data.train_split]
    split = next(split for split in splits if split in sizes.num_queries)
    say(
        f"plan: {config.plan.sample_passages:,} passages are tokenised, and some encoded "
        + (f"with {dtype} on {device}" if figures is None else f"by the figures of {figures.name}")
    )
    rates, seconds = _run(
        _encoding, settings.cpus_per_actor, 0 if figures else settings.gpus_per_actor,
        config, corpus, dataset, split, dtype, device,
    )  # fmt: skip
    made: EncodingRates = rates
    return replace(made, load_seconds=seconds)


def _encoding(
    config: RunConfig, corpus: Folder, dataset: Folder, split: str, dtype: str, device: str
) -> tuple[EncodingRates, float]:
    """Runs as a Ray task; returns the rates and the seconds that were spent trying."""
    from raydr.ops.plan.probe import probe_encoding

    started = time.perf_counter()
    passages = Corpus.open(corpus)
    rows = np.unique(np.linspace(0, len(passages) - 1, config.plan.sample_passages).round().astype(np.int64))
    texts = passages.texts(rows)
    queries = Dataset.open(dataset).queries(split)["text"].slice(0, _QUERIES).to_pylist()
    rates = probe_encoding(config, texts.titles, texts.texts, queries, dtype, device, config.plan.device)
    return rates, time.perf_counter() - started


def _try_training(config: RunConfig, corpus: Folder, dataset: Folder, encoding: EncodingRates) -> TrainingRates:
    train = config.train
    share = max(2, train.batch_size // train.fewest_workers)
    if config.plan.device is not None:
        # Three forward passes: one, and the backward pass that costs two.
        group = encoding.queries.padded_tokens + (1 + train.num_hard_negatives) * encoding.passages.padded_tokens
        return TrainingRates(3 * share * group / encoding.tokens_per_second, None)
    say(f"plan: training is tried with {share} queries a step, a worker's share of {train.batch_size}")
    rates, _ = _run(
        _training, train.cpus_per_worker, 1 if train.use_gpu else 0, config, corpus, dataset, share
    )  # fmt: skip
    made: TrainingRates = rates
    return made


def _training(config: RunConfig, corpus: Folder, dataset: Folder, share: int) -> tuple[TrainingRates, float]:
    """Runs as a Ray task."""
    from raydr.models.precision import resolve_dtype
    from raydr.ops.plan.probe import probe_training

    started = time.perf_counter()
    dtype, _ = resolve_dtype(config.train.dtype, "cuda" if config.train.use_gpu else "cpu")
    data, split = Dataset.open(dataset), config.data.train_split
    queries = data.queries(split).slice(0, _STEPS * share)
    qrels = data.qrels(split)
    qrels = qrels.filter(pc.is_in(qrels["query_id"], value_set=queries["query_id"].combine_chunks()))
    tables = (queries, qrels, data.negatives(split).slice(0, 0))
    return probe_training(config, str(corpus), tables, share, dtype), time.perf_counter() - started


def _search(dim: int) -> tuple[SearchRates, float]:
    """Runs as a Ray task."""
    from raydr.ops.plan.probe import probe_search

    started = time.perf_counter()
    return probe_search(dim), time.perf_counter() - started


def _run(trial: Callable[..., tuple[Any, float]], cpus: float, gpus: float, *arguments: Any) -> tuple[Any, float]:
    """Run a trial in a worker of its own; returns its result, and the seconds that the worker needed to start."""
    import ray

    started = time.perf_counter()
    # One call a worker, so that each starts afresh and its peak of memory is its own.
    task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_calls=1)(trial)
    result, seconds = ray.get(task.remote(*arguments))
    return result, max(0.0, time.perf_counter() - started - seconds)
