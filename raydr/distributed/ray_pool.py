"""Pool of Ray's workers: tasks for functions, Ray Data for workers that hold a model."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray

from raydr.console import progress_bar
from raydr.distributed.arithmetic import plan_encoders
from raydr.distributed.cluster import stage_labels, start_ray
from raydr.distributed.failures import interrupt, worker_errors
from raydr.distributed.pool import SINGLE_CPU, Calls, Feed, Function, Needs, Pool
from raydr.distributed.resources import memory_to_ask

if TYPE_CHECKING:
    from ray.data import DataContext

#: Maximum of actors that die in a row while they start; a bad node must not end a stage.
_DEATHS_WHILE_STARTING = 2


class RayPool(Pool):
    """Pool that runs all calls on the cluster, or on a local Ray, which it starts if needed."""

    here = False

    def __init__(self) -> None:
        start_ray()

    def num_threads(self, num_cpus: float) -> int:
        return max(1, int(num_cpus))

    def run(self, function: Function, *arguments: Any, needs: Needs = SINGLE_CPU) -> Any:
        with worker_errors():
            return ray.get(_task(function, needs).remote(*arguments))

    def map(
        self, function: Function, calls: Calls, description: str, unit: str = "parts", needs: Needs = SINGLE_CPU
    ) -> list[Any]:
        task = _task(function, needs)
        references = [task.remote(*arguments) for arguments in calls]
        left, results = references, {}
        with progress_bar(description, len(references), unit) as bar:
            try:
                while left:
                    (done,), left = ray.wait(left, num_returns=1)
                    with worker_errors():
                        results[done] = ray.get(done)
                    bar.advance()
            finally:
                interrupt(left)
        return [results[reference] for reference in references]

    def stream(self, function: Callable[..., Iterator[Any]], calls: Calls) -> Iterator[Any]:
        task = _task(function, SINGLE_CPU).options(num_returns="streaming")
        left: list[Any] = [task.remote(*arguments) for arguments in calls]
        try:
            while left:
                (generator,), left = ray.wait(left, num_returns=1, fetch_local=False)
                reference = next(generator, None)
                if reference is not None:
                    left.append(generator)
                    with worker_errors():
                        result = ray.get(reference)
                    yield result
        finally:
            interrupt([generator.completed() for generator in left])

    def feed(self, feed: Feed, items: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        # worker_errors clears the frames below this frame, which would keep objects of Ray alive.
        with worker_errors():
            yield from self._feed(feed, items)

    def _feed(self, feed: Feed, items: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        from ray.data import ActorPoolStrategy, DataContext

        settings = feed.settings
        fewest, most = plan_encoders(settings, len(items))
        with DataContext.current(data_context()):
            rows = ray.data.from_items([dict(item) for item in items], override_num_blocks=len(items))
            if feed.before is not None:
                rows = rows.map_batches(
                    feed.before,
                    batch_size=1,
                    batch_format="numpy",
                    fn_kwargs={"job": feed.job},
                    num_cpus=settings.cpus_per_tokenizer,
                )
            rows = rows.map_batches(
                feed.worker,
                batch_size=1,
                batch_format="numpy",
                fn_constructor_args=(feed.job,),
                compute=ActorPoolStrategy(
                    min_size=fewest,
                    max_size=most,
                    max_concurrent_calls_per_actor=feed.calls_at_once,
                    enable_true_multi_threading=feed.calls_at_once > 1,
                ),
                num_cpus=settings.cpus_per_actor,
                num_gpus=settings.gpus_per_actor,
            )
            yield from rows.iter_rows()


def _task(function: Function, needs: Needs) -> Any:
    """Return a Ray task that calls a function on a node with the needed resources."""
    options: dict[str, Any] = {"memory": memory_to_ask(needs.memory)} if needs.memory else {}
    labels = stage_labels() if needs.labels is None else dict(needs.labels)
    return ray.remote(num_cpus=needs.num_cpus, num_gpus=needs.num_gpus, label_selector=labels, **options)(function)


def data_context() -> DataContext:
    """Return a copy of Ray Data's settings for parts of minutes or hours, on nodes that come and go.

    Use it as ``DataContext.current(...)``.
    """
    from ray.data import DataContext

    # The import of Ray Data resets the level of its log; failures are raised and need not be logged too.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        # The copy reads settings that Ray itself has deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        context = DataContext.get_current().copy()
    context.use_datasource_v2 = False
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.raise_original_map_exception = True
    # Those of its own requests of the autoscaler too: without, they start and keep machines that no worker may use.
    context.execution_options.label_selector = stage_labels()
    # Waiting for a node is no fault, and a part may take longer than Ray Data's half an hour.
    context.execution_no_progress_timeout_s = -1
    context.max_consecutive_actor_init_deaths = _DEATHS_WHILE_STARTING
    return context
