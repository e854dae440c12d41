"""What works for a trial outside its process, and the news of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import ray

from raydr.errors import NodeLostError
from raydr.stages.failures import worker_errors
from raydr.stages.interrupting import interrupt
from raydr.tuning.trials import Row

#: What a trial waits for: its share of the cluster, or its inputs.
RESOURCES, INPUTS = "its CPUs and GPUs", "what it trains on, which is being made for it or another trial"
ANOTHER_NODE = "another node: that of its work was lost"
T = TypeVar("T")
#: Seconds between two looks at work, and between two words about waiting for it.
LOOK_S, _WORD_S = 0.5, 60.0
#: Seconds until work that was ended is gone.
_GONE_S = 120.0


@dataclass(frozen=True)
class News:
    """How far a trial is.

    Args:
        rows: all so far.
        finished: the last row is there, and the model.
        waits_for: what it needs before it can go on; empty if it does not wait.
        waited_s: seconds that it has waited for that.
    """

    rows: list[Row]
    finished: bool = False
    waits_for: str = ""
    waited_s: float = 0.0


@contextmanager
def outside(
    task: Callable[..., Any],
    *arguments: Any,
    num_cpus: float = 0,
    num_gpus: float = 0,
    node_labels: Mapping[str, str] | None = None,
) -> Iterator[Any]:
    """A Ray task outside the trial's placement group, never tried again: Tune counts the tries.

    When the block ends before the task, the task is interrupted, as by Ctrl-C, and waited for. That is how Ray Train
    takes its workers down and gives back what they hold: if its caller is killed, it leaves that to an actor that asks
    the dashboard.
    """
    options = {
        "num_cpus": num_cpus,
        "num_gpus": num_gpus,
        "label_selector": dict(node_labels or {}),
        "max_retries": 0,
        # The process ends with its work: what it held of memory and GPU is free for the next trial.
        "max_calls": 1,
        "scheduling_strategy": "DEFAULT",
        # Without it that actor finds no dashboard where several Rays run on one machine, and dies of it.
        "runtime_env": {"env_vars": {"RAY_API_SERVER_ADDRESS": ray.get_runtime_context().gcs_address}},
    }
    reference = ray.remote(**options)(task).remote(*arguments)
    try:
        yield reference
    finally:
        # Not what the task has called as well: Ray Train's controller is asked to stop, and must not be broken off.
        interrupt([reference], recursive=False)
        ray.wait([reference], timeout=_GONE_S)


def wait_for(work: Any, what: str, begun: Callable[[], bool] = lambda: False) -> Generator[News, None, None]:
    """A word every minute until some work is over, or has begun.

    Args:
        work: is waited for.
        what: it is, for people.
        begun: whether it is no longer waited for.
    """
    since = told = time.monotonic()
    while not begun() and not ray.wait([work], timeout=LOOK_S)[0]:
        if time.monotonic() > told + _WORD_S:
            told = time.monotonic()
            yield News([], waits_for=what, waited_s=told - since)


def in_spite_of_lost_nodes(work: Callable[[], Generator[News, None, T]]) -> Generator[News, None, T]:
    """Begin work again as often as the node that it runs on is lost: a cloud's doing, and no failure of the trial.

    Args:
        work: goes on from what it has kept.
    """
    while True:
        try:
            return (yield from work())
        except NodeLostError:
            yield News([], waits_for=ANOTHER_NODE)


def result_of(work: Any) -> Any:
    """What a task outside has returned; a raydr error that it raised comes out as itself."""
    with worker_errors():
        return ray.get(work)
