"""Where the parts of an artefact are made: by Ray's workers, or in this very process.

A stage says what one part takes and is given a pool; it does not know which. The same functions run in both: on as many
threads of torch the bytes are the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
class Feed:
    """Work for workers that hold a model.

    Args:
        worker: a class; made once a process with ``job``, called with a batch of one item.
        job: what every worker knows; small and picklable.
        before: what is done with an item first, where no model is needed: ``before(batch, job)``.
        calls_at_once: threads of a process that may call the worker at a time.
        beside: whether, in one process, ``before`` and what follows the worker's own work go on beside it, in threads:
            where a GPU does that work and Python seldom has to start any.
        settings: how many workers there are, and how large; ``before`` has tasks of its own.
    """

    worker: Callable[[Any], Callable[[Batch], Batch]]
    job: Any
    settings: EncodeConfig
    before: Callable[[Batch, Any], Batch] | None = None
    calls_at_once: int = 1
    beside: bool = False


class Pool(ABC):
    """Runs functions that make parts."""

    #: Whether everything runs in this process.
    here: bool

    @abstractmethod
    def num_threads(self, num_cpus: float) -> int | None:
        """Threads that PyTorch computes with in a worker of so many CPUs; None: as many as the process has anyway."""

    @abstractmethod
    def run(
        self,
        function: Function,
        *arguments: Any,
        num_cpus: float = 1,
        num_gpus: float = 0,
        memory: int = 0,
        labels: Mapping[str, str] | None = None,
        retried: bool = True,
    ) -> Any:
        """The result of one call.

        Args:
            function: what is called.
            arguments: of the call.
            num_cpus: that it needs.
            num_gpus: that it needs.
            memory: bytes that it needs; 0 where any node has enough.
            labels: of the nodes that suit; those of ``ray.node_labels`` if None.
            retried: whether a worker that was lost in the middle may be replaced.

        Raises:
            RaydrError: what the function raised, as itself.
        """

    @abstractmethod
    def map(
        self,
        function: Function,
        calls: Calls,
        description: str,
        unit: str = "parts",
        num_cpus: float = 1,
        memory: int = 0,
    ) -> list[Any]:
        """The results of many calls, in their order; under a progress bar.

        Raises:
            RaydrError: the first one that a call raised; the others are given up.
        """

    @abstractmethod
    def stream(self, function: Callable[..., Iterator[Any]], calls: Calls) -> Iterator[Any]:
        """What many calls of a generator yield, in the order of time; given up if the caller stops early."""

    @abstractmethod
    def feed(self, feed: Feed, items: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """What the workers return for the items, as they finish.

        Args:
            feed: the workers.
            items: numbers and strings by name, one mapping an item.
        """


class ThisProcess(Pool):
    """Runs everything in this process, one after the other: what is small is done before a worker has started.

    Args:
        num_cpus: that others leave it; all of the machine if None.
    """

    here = True

    def __init__(self, num_cpus: float | None = None) -> None:
        self.num_cpus = num_cpus

    def num_threads(self, num_cpus: float) -> int | None:
        return None if self.num_cpus is None else max(1, int(self.num_cpus))

    def run(
        self,
        function: Function,
        *arguments: Any,
        num_cpus: float = 1,
        num_gpus: float = 0,
        memory: int = 0,
        labels: Mapping[str, str] | None = None,
        retried: bool = True,
    ) -> Any:
        return function(*arguments)

    def map(
        self,
        function: Function,
        calls: Calls,
        description: str,
        unit: str = "parts",
        num_cpus: float = 1,
        memory: int = 0,
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
        batches: Iterator[Batch] = ({name: np.array([value]) for name, value in item.items()} for item in items)
        num_before, num_calls = (1, feed.calls_at_once) if feed.beside else (0, 0)
        if feed.before is not None:
            before = feed.before
            batches = _ahead(lambda batch: before(batch, feed.job), batches, num_before)
        if items:
            for made in _ahead(feed.worker(feed.job), batches, num_calls):
                yield {name: column[0] for name, column in made.items()}


def _ahead(function: Callable[[Batch], Batch], batches: Iterator[Batch], num_threads: int) -> Iterator[Batch]:
    """What a function makes of batches, in their order.

    Threads make them ahead, at most one more than there are threads; without threads each is made when it is due.
    """
    if not num_threads:
        yield from map(function, batches)
        return
    with ThreadPoolExecutor(num_threads) as pool:
        pending: deque[Future[Batch]] = deque()
        try:
            for batch in batches:
                pending.append(pool.submit(function, batch))
                if len(pending) > num_threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
