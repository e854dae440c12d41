"""Errors of workers, raised on the driver without Ray's wrapping, and the interrupt that ends a stage."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from raydr.errors import NodeLostError, RaydrError


@contextmanager
def worker_errors() -> Iterator[None]:
    """Raise a :class:`~raydr.errors.RaydrError` of a Ray worker here, without Ray's wrapping and stack trace.

    Other errors of a worker are bugs and stay as Ray reports them. Frames of the error are cleared, since they would
    keep Ray's actors alive and their CPUs taken.
    """
    from ray.exceptions import ActorDiedError, NodeDiedError, RayError, WorkerCrashedError

    try:
        yield
    except RayError as error:
        _clear_frames(error)
        current: BaseException | None = error
        while current is not None:
            # Cause of a task's error, or of an error while its arguments were opened.
            cause = getattr(current, "cause", None) or getattr(current, "client_exc", None)
            if isinstance(cause, RaydrError):
                raise cause from None
            current = cause if isinstance(cause, BaseException) else current.__cause__
        if isinstance(error, ActorDiedError):
            raise RaydrError(f"a worker died: {error}") from error
        if isinstance(error, NodeDiedError | WorkerCrashedError):
            kind = NodeLostError if isinstance(error, NodeDiedError) else RaydrError
            raise kind(f"a worker was lost ({root_cause(error)}): run the same command again") from error
        raise


def root_cause(error: BaseException) -> str:
    """Return the first cause in a line: the message of a raydr error, or the type and message of another error."""
    root = error
    while (cause := getattr(root, "cause", None) or root.__cause__) is not None and isinstance(cause, BaseException):
        root = cause
    if isinstance(root, RaydrError):
        return " ".join(str(root).split())
    lines = [line.strip() for line in str(root).splitlines() if line.strip()]
    return f"{type(root).__name__}: {lines[-1]}" if lines else type(root).__name__


def _clear_frames(error: BaseException | None) -> None:
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    # Ray Data's executor is part of reference cycles.
    gc.collect()


def interrupt(references: Sequence[Any], recursive: bool = True) -> None:
    """Interrupt running tasks, as Ctrl-C does.

    A task whose result has just come must not be cancelled: Ray would fail the task while it completes. Then its core
    would end this process without a message ("Tried to complete task that was not pending", Ray 2.60).

    Args:
        references: references of the tasks; ``completed()`` of generators.
        recursive: whether to interrupt also the tasks that these tasks have started.
    """
    if not references:
        return
    # The import of Ray takes a second, and most commands do not need it.
    import ray

    _, running = ray.wait(list(references), num_returns=len(references), timeout=0, fetch_local=False)
    for reference in running:
        ray.cancel(reference, recursive=recursive)
