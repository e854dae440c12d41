"""Trials of a plan: each probe runs once, in a Ray task with the resources of the worker that it stands for.

The task's start-up and its peak of memory are therefore those of such a worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from raydr.config.files import merged
from raydr.config.run import RunConfig
from raydr.console import say
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.distributed.arithmetic import Arithmetic, resolve_arithmetic
from raydr.distributed.cluster import stage_labels, start_ray
from raydr.distributed.failures import worker_errors
from raydr.distributed.ray_pool import RayPool
from raydr.models.config import ModelConfig
from raydr.ops.plan import probes
from raydr.ops.plan.probes import ModelRates, SearchRates, StepRates
from raydr.training.config import TrainConfig

T = TypeVar("T")


class Trials:
    """The trials of a plan: each is run when it is first asked for, and once.

    Args:
        config: the run; its section ``plan`` says for how long a model is tried, or has figures of another device.
        corpus: the prepared corpus, from which passages are sampled evenly.
        data: the prepared queries.
    """

    def __init__(self, config: RunConfig, corpus: Corpus, data: Dataset) -> None:
        self._inputs = config, corpus, data
        self._done: dict[tuple[object, ...], Any] = {}

    def retriever(self, model: ModelConfig) -> ModelRates:
        """Of a dual encoder: passages and queries."""
        return self._read(probes.read_texts, model, "texts are tokenised, and some encoded")

    def ranker(self) -> ModelRates:
        """Of the config's cross-encoder: pairs."""
        return self._read(
            probes.read_pairs, self._inputs[0].ranker.model, "queries are read with passages by the ranker"
        )

    def step(self, model: ModelConfig, train: TrainConfig) -> StepRates:
        """Of a dual encoder's training."""
        share = max(2, train.batch_size // train.fewest_workers)
        if self._inputs[0].plan.device is not None:
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
        return self._learn(probes.train, share, model, TrainConfig.model_validate(merged(train.model_dump(), plain)))

    def ranker_step(self) -> StepRates:
        """Of the config's cross-encoder's training, on lists of random passages."""
        config = self._inputs[0]
        share = max(1, config.ranker.batch_size // config.train.fewest_workers)
        if config.plan.device is not None:
            pairs = self.ranker().texts["pair"]
            # Lists are padded to their longest pair.
            return StepRates(3 * share * config.ranker.passages_per_query * pairs.forward * pairs.longest, None)
        return self._learn(probes.train_ranker, share)

    def search(self, dim: int) -> SearchRates:
        """Of an exact index."""
        return self._run(1, 0, "an index is filled and searched", probes.search, dim)[0]

    def _read(self, probe: Callable[..., ModelRates], model: Any, what: str) -> ModelRates:
        config = self._inputs[0]
        figures, encode = config.plan.device, config.encode
        gpus = 0 if figures else encode.gpus_per_actor
        with worker_errors():
            start_ray()
            how = Arithmetic("float32", "cpu", encode.batch_tokens("cuda"))
            how = how if figures else resolve_arithmetic(encode, RayPool())
        by = f"by the figures of {figures.name}" if figures else f"with {how.dtype} on {how.device}"
        action = f"{what} {by}"
        rates, seconds = self._run(encode.cpus_per_actor, gpus, action, probe, *self._inputs, model, how)
        return replace(rates, load_seconds=seconds)

    def _learn(self, probe: Callable[..., StepRates], share: int, *settings: Any) -> StepRates:
        train = self._inputs[0].train
        what = f"training steps of {share} queries, a worker's share"
        return self._run(train.cpus_per_worker, int(train.use_gpu), what, probe, *self._inputs, share, *settings)[0]

    def _run(self, cpus: float, gpus: float, what: str, probe: Callable[..., T], *arguments: Any) -> tuple[T, float]:
        """The result of a trial in a worker of its own, and the seconds that the worker needed to start."""
        shown = (
            argument.model_dump_json() if hasattr(argument, "model_dump_json") else str(argument)
            for argument in arguments
        )
        key = probe, *shown
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
