"""Pools, which run the functions that make parts of artefacts: in this process, or on Ray's workers.

A stage receives a pool and does not depend on its kind. The same functions run in both: with as many threads of PyTorch
the bytes are the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raydr.console import progress_bar
from raydr.models.encode_config import EncodeConfig

#: What a worker of :meth:`Pool.feed` gets and returns: columns of one row.
Batch = dict[str, Any]
Function = Callable[..., Any]
#: The arguments of each of many calls.
Calls = Sequence[tuple[Any, ...]]


@dataclass(frozen=True)
class Needs:
    """What a call needs of the machine that it runs on.

    Args:
        num_cpus: CPUs.
        num_gpus: GPUs.
        memory: bytes; 0 where any machine has enough.
        labels: of the nodes that may run it; those of ``ray.node_labels`` if None.
    """

    num_cpus: float = 1
    num_gpus: float = 0
    memory: int = 0
    labels: Mapping[str, str] | None = None


#: What a call needs if nothing else is stated.
SINGLE_CPU = Needs()


@dataclass(frozen=True)
class Feed:
    """Work for workers that hold a model.

    Args:
        worker: a class; made once a process with ``job``, called with a batch of one item.
        job: read by every worker; small and picklable.
        before: prepares an item without the model, such as a tokeniser: ``before(batch, job)``.
        calls_at_once: threads of a process that may call the worker at once.
        settings: number and size of the workers; ``before`` has tasks of its own.
    """

    worker: Callable[[Any], Callable[[Batch], Batch]]
    job: Any
    settings: EncodeConfig
    before: Callable[[Batch, Any], Batch] | None = None
    calls_at_once: int = 1


class Pool(ABC):
    """Runs functions that make parts."""

    #: Whether everything runs in this process.
    here: bool

    @abstractmethod
    def num_threads(self, num_cpus: float) -> int | None:
        """Return PyTorch's threads in a worker of ``num_cpus`` CPUs; None: leave them as they are."""

    @abstractmethod
    def run(self, function: Function, *arguments: Any, needs: Needs = SINGLE_CPU) -> Any:
        """Return the result of a call.

        Args:
            function: what is called.
            arguments: of the call.
            needs: of the call.

        Raises:
            RaydrError: what the function raised, as itself.
        """

    @abstractmethod
    def map(
        self, function: Function, calls: Calls, description: str, unit: str = "parts", needs: Needs = SINGLE_CPU
    ) -> list[Any]:
        """Return the results of many calls, in their order; with a progress bar.

        Raises:
            RaydrError: the first error of a call; the other calls are cancelled.
        """

    @abstractmethod
    def stream(self, function: Callable[..., Iterator[Any]], calls: Calls) -> Iterator[Any]:
        """Yield what many calls of a generator yield, as it comes; cancelled if the caller stops early."""

    @abstractmethod
    def feed(self, feed: Feed, items: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield what the workers return for the items, as they finish.

        Args:
            feed: the workers.
            items: numbers and strings by name, one mapping an item.
        """


class ThisProcess(Pool):
    """Runs everything in this process, call after call: small work takes less time than the start of a worker.

    Args:
        num_cpus: that it may use; all of the machine if None.
    """

    here = True

    def __init__(self, num_cpus: float | None = None) -> None:
        self.num_cpus = num_cpus

    def num_threads(self, num_cpus: float) -> int | None:
        return None if self.num_cpus is None else max(1, int(self.num_cpus))

    def run(self, function: Function, *arguments: Any, needs: Needs = SINGLE_CPU) -> Any:
        return function(*arguments)

    def map(
        self, function: Function, calls: Calls, description: str, unit: str = "parts", needs: Needs = SINGLE_CPU
    ) -> list[Any]:
        results = []
        with progress_bar(description, len(calls), unit) as bar:
            for arguments in calls:
                results.append(function(*arguments))
                bar.advance()
        return results

    def stream(self, function: Callable[..., Iterator[Any]], calls: Calls) -> Iterator[Any]:
        for arguments in calls:
            yield from function(*arguments)

    def feed(self, feed: Feed, items: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        if not items:
            return
        work = feed.worker(feed.job)
        for item in items:
            batch: Batch = {name: np.array([value]) for name, value in item.items()}
            made = work(batch if feed.before is None else feed.before(batch, feed.job))
            yield {name: column[0] for name, column in made.items()}
