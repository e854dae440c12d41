"""Waiting for Ray tasks: progress while they run, and errors as raydr raised them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raydr.runtime.console import progress_bar
from raydr.stages.failures import worker_errors


def fetch(reference: Any) -> Any:
    """The result of a task; a raydr error raised in it comes out as itself, without Ray's wrapping."""
    import ray

    with worker_errors():
        return ray.get(reference)


def wait_for(references: list[Any], description: str, unit: str) -> Iterator[Any]:
    """References of the tasks as they finish, under a progress bar; nothing is fetched.

    If one of them fails, the caller finds out by :func:`fetch`. If the caller stops early, the others are cancelled.
    """
    import ray

    left = list(references)
    with progress_bar(description, len(left), unit) as bar:
        try:
            while left:
                ready, left = ray.wait(left, num_returns=1, fetch_local=False)
                bar.advance(len(ready))
                yield from ready
        finally:
            for reference in left:
                ray.cancel(reference)


def results(references: list[Any], description: str, unit: str) -> Iterator[Any]:
    """Results of the tasks as they finish, under a progress bar; for small results only.

    Raises:
        RaydrError: the first one that a task raised; the others are cancelled.
    """
    for reference in wait_for(references, description, unit):
        yield fetch(reference)
