"""An object store that is far away: requests are counted in round trips instead of waited for."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

#: Requests of a file system as an S3 client sends them.
_REQUESTS = ("cat_file", "exists", "find", "get_file", "info", "pipe_file", "put_file")


@dataclass
class Store:
    """What was asked of ``memory://`` so far.

    Args:
        rounds: round trips that followed one another; requests that threads send at the same time are one.
        files: paths that were read.
    """

    rounds: int = 0
    files: set[str] = field(default_factory=set)
    _inside: bool = False

    def asked(self, request: Callable[..., Any], reads: bool) -> Callable[..., Any]:
        def counting(filesystem: MemoryFileSystem, *arguments: Any, **options: Any) -> Any:
            if self._inside:
                return request(filesystem, *arguments, **options)
            self._inside = True
            try:
                self.rounds += 1
                if reads:
                    self.files.add(arguments[0])
                return request(filesystem, *arguments, **options)
            finally:
                self._inside = False

        return counting

    def threads(self, number: int, **_: Any) -> Threads:
        return Threads(self, number)


@dataclass
class Threads:
    """Stands in for a pool of threads: calls follow one another, and the rounds are those of the busiest thread."""

    store: Store
    number: int

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_: object) -> None: ...

    def map(self, do: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        free, results = [self.store.rounds] * self.number, []
        for item in items:
            self.store.rounds = heapq.heappop(free)
            results.append(do(item))
            heapq.heappush(free, self.store.rounds)
        self.store.rounds = max(free)
        return results


@contextmanager
def counted_rounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Count the requests to ``memory://`` inside the block."""
    store = Store()
    with monkeypatch.context() as patched:
        for name in _REQUESTS:
            reads = name in ("cat_file", "get_file")
            patched.setattr(MemoryFileSystem, name, store.asked(getattr(MemoryFileSystem, name), reads))
        patched.setattr("raydr.store.folder.ThreadPoolExecutor", store.threads)
        yield store
