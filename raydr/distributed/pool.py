"""Pools, which run the functions that make parts of artefacts, in this process or on Ray's workers.

A stage receives a pool and does not depend on its kind. Both run the same functions: with equal numbers of PyTorch's
threads, the bytes are equal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raydr.console import progress_bar
from raydr.models.encode_config import EncodeConfig

#: Input and output of a worker of :meth:`Pool.feed`: columns of a single row.
Batch = dict[str, Any]
Function = Callable[..., Any]
#: Arguments of each call.
Calls = Sequence[tuple[Any, ...]]


@dataclass(frozen=True)
class Needs:
    """Resources that a call needs on its machine.

    Args:
        num_cpus: CPUs.
        num_gpus: GPUs.
        memory: bytes; 0 if any machine has enough.
        labels: labels of the nodes that may run it; ``ray.node_labels`` if None.
    """

    num_cpus: float = 1
    num_gpus: float = 0
    memory: int = 0
    labels: Mapping[str, str] | None = None


#: Default resources of a call.
SINGLE_CPU = Needs()


@dataclass(frozen=True)
class Feed:
    """Work for workers that hold a model.

    Args:
        worker: class; each process makes a worker with ``job`` and calls it with batches of a single item.
        job: inputs and settings of every worker; small and picklable.
        before: function ``before(batch, job)`` that prepares an item without the model, such as a tokeniser.
        calls_at_once: threads of a process that may call the worker concurrently.
        settings: number and size of the workers; ``before`` has separate tasks.
    """

    worker: Callable[[Any], Callable[[Batch], Batch]]
    job: Any
    settings: EncodeConfig
    before: Callable[[Batch, Any], Batch] | None = None
    calls_at_once: int = 1


class Pool(ABC):
    """Pool that runs functions which make parts."""

    #: Whether everything runs in this process.
    here: bool

    @abstractmethod
    def num_threads(self, num_cpus: float) -> int | None:
        """Return the number of PyTorch's threads in a worker of ``num_cpus`` CPUs; None to leave it unchanged."""

    @abstractmethod
    def run(self, function: Function, *arguments: Any, needs: Needs = SINGLE_CPU) -> Any:
        """Call a function and return its result.

        Args:
            function: function to call.
            arguments: arguments of the call.
            needs: resources of the call.

        Raises:
            RaydrError: the function raised this error.
        """

    @abstractmethod
    def map(
        self, function: Function, calls: Calls, description: str, unit: str = "parts", needs: Needs = SINGLE_CPU
    ) -> list[Any]:
        """Call a function many times with a progress bar, and return the results in the order of the calls.

        Raises:
            RaydrError: the first error of a call; the other calls are cancelled.
        """

    @abstractmethod
    def stream(self, function: Callable[..., Iterator[Any]], calls: Calls) -> Iterator[Any]:
        """Yield the values of many calls of a generator as they come; calls are cancelled if the caller stops early."""

    @abstractmethod
    def feed(self, feed: Feed, items: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the rows that the workers return for the items, as they come.

        Args:
            feed: workers and their settings.
            items: inputs of the workers, each with numbers and strings by name.
        """


class ThisProcess(Pool):
    """Pool that runs all calls in this process, in turn: small work takes less time than the start of a worker.

    Args:
        num_cpus: CPUs that it may use; all of the machine if None.
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
