"""Tasks that are no longer wanted: those that run are interrupted, those that are over are left alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from patience import PATIENCE_S
from ray import cloudpickle
from ray.exceptions import TaskCancelledError

from raydr.distributed.failures import interrupt

# Processes of Ray do not find the packages of the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def for_ever(begun: str) -> None:
    import time

    Path(begun).touch()
    while True:
        time.sleep(0.01)


def numbers_for_ever() -> Iterator[int]:
    import itertools
    import time

    for number in itertools.count():
        time.sleep(0.01)
        yield number


def at_once() -> str:
    return "done"


def test_what_runs_is_interrupted_and_what_is_over_is_left_alone(
    ray_local: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel, cancelled = ray.cancel, list[Any]()

    def counted(reference: Any, **options: Any) -> None:
        cancelled.append(reference)
        cancel(reference, **options)

    monkeypatch.setattr(ray, "cancel", counted)
    begun = tmp_path / "begun"
    running = ray.remote(num_cpus=0)(for_ever).remote(str(begun))
    over = ray.remote(num_cpus=0)(at_once).remote()
    assert ray.get(over) == "done"
    while not begun.exists():
        ray.wait([running], timeout=0.05)
    interrupt([over, running])
    assert cancelled == [running]
    with pytest.raises(TaskCancelledError):
        ray.get(running, timeout=PATIENCE_S)
    interrupt([])


def test_a_generator_is_interrupted_by_its_end(ray_local: None) -> None:
    task = ray.remote(num_cpus=0, num_returns="streaming")(numbers_for_ever)
    generator = task.remote()
    assert ray.get(next(generator)) == 0
    interrupt([generator.completed()])
    with pytest.raises(TaskCancelledError):
        ray.get(generator.completed(), timeout=PATIENCE_S)


def test_tasks_that_end_just_then_end_no_process(ray_local: None) -> None:
    """Cancelled when its result had come, one in some hundreds ended this process."""
    task = ray.remote(num_cpus=0)(at_once)
    for _ in range(1000):
        reference = task.remote()
        assert ray.get(reference) == "done"
        interrupt([reference])
