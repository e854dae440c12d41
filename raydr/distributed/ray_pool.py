"""The pool of Ray's workers: tasks for functions, Ray Data for workers that hold a model."""

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
from raydr.distributed.pool import Calls, Feed, Function, Pool
from raydr.distributed.resources import memory_to_ask

if TYPE_CHECKING:
    from ray.data import DataContext

#: Actors that may die in a row while they start, before a stage gives up: one bad node must not end it.
_DEATHS_WHILE_STARTING = 2


class RayPool(Pool):
    """Runs everything on the cluster, or on a Ray of this machine, which is started if need be."""

    here = False

    def __init__(self) -> None:
        start_ray()

    def num_threads(self, num_cpus: float) -> int:
        return max(1, int(num_cpus))

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
        options: dict[str, Any] = {} if retried else {"max_retries": 0}
        options["label_selector"] = stage_labels() if labels is None else dict(labels)
        if memory:
            options["memory"] = memory_to_ask(memory)
        task = ray.remote(num_cpus=num_cpus, num_gpus=num_gpus, **options)(function)
        with worker_errors():
            return ray.get(task.remote(*arguments))

    def map(
        self,
        function: Function,
        calls: Calls,
        description: str,
        unit: str = "parts",
        num_cpus: float = 1,
        memory: int = 0,
    ) -> list[Any]:
        asked = {"memory": memory_to_ask(memory)} if memory else {}
        task = ray.remote(num_cpus=num_cpus, label_selector=stage_labels(), **asked)(function)
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
        task = ray.remote(num_cpus=1, num_returns="streaming", label_selector=stage_labels())(function)
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
        # What an error holds on to is let go in the frames below the one that catches it.
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
                    label_selector=stage_labels(),
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
                label_selector=stage_labels(),
            )
            yield from rows.iter_rows()


def data_context() -> DataContext:
    """Return a copy of Ray Data's settings for parts of minutes or hours, on nodes that come and go.

    Use it as ``DataContext.current(...)``.
    """
    from ray.data import DataContext

    # Importing Ray Data sets the level of its log anew; failures are raised, so they need not be logged as well.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        # The copy reads settings that Ray itself has deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        context = DataContext.get_current().copy()
    context.use_datasource_v2 = False
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.raise_original_map_exception = True
    # Waiting for a node is no fault, and a part may take longer than Ray Data's half an hour.
    context.execution_no_progress_timeout_s = -1
    context.max_consecutive_actor_init_deaths = _DEATHS_WHILE_STARTING
    return context
