"""A trial makes the model of its config, or the rounds of its refresh, and reports the dev measures.

A trial makes nodes of the graph, so it reuses those that another trial, a verb or a killed search has made. Its own
process reserves no CPU and no GPU; a Ray task with its own resources does the work. Trials therefore never wait for
each other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import ray
from ray.tune import Trainable

from raydr.artefacts import Context, Node
from raydr.artefacts.context import Facts
from raydr.artefacts.places import Places
from raydr.config.run import RunConfig
from raydr.distributed.cluster import ray_session
from raydr.distributed.failures import interrupt, root_cause, worker_errors
from raydr.distributed.pool import Pool, ThisProcess
from raydr.distributed.ray_pool import RayPool
from raydr.distributed.resources import cluster_capacity
from raydr.errors import NodeLostError, RaydrError
from raydr.pipeline.garbage import open_claims, remove_unclaimed
from raydr.pipeline.planning import Inventory, required
from raydr.pipeline.recipe import Recipe
from raydr.pipeline.rounds import FinishedRounds, lay_out, next_rounds
from raydr.pipeline.running import Runner
from raydr.seeding import stable_hash64
from raydr.store import Folder
from raydr.tracking.tracker import NullTracker
from raydr.training.checkpoint import checkpoint_folder
from raydr.training.reports import Watcher
from raydr.tuning.report import Row, rows_of
from raydr.tuning.space import with_values

if TYPE_CHECKING:
    from raydr.training.checkpoint import Progress

#: Metrics of the epochs of a training, in its trial's folder.
HISTORY = "history.json"
#: Seconds between two polls of a task, and until an interrupted task is given up.
_LOOK_S, _GONE_S = 0.5, 120.0

#: All rows of a trial so far, and whether the trial is finished.
News = Generator[tuple[list[Row], bool], None, None]


@dataclass(frozen=True)
class Objective:
    """The work of trials; sent to their processes, so it holds settings and no data.

    Args:
        config: config of the default trial.
        refreshes: whether trials are refreshes.
        max_failures: number of retries of a failed trial.
    """

    config: RunConfig
    refreshes: bool
    max_failures: int = 0

    def follow(self, values: Mapping[str, Any], place: Folder) -> News:
        """Run or resume a trial; its task ends when the generator is closed.

        Args:
            values: values of the trial, by dotted key.
            place: the trial's folder.
        """
        config = with_values(self.config, values)
        return follow_refresh(config) if self.refreshes else follow_training(config, place)

    def nodes(self, values: Mapping[str, Any]) -> list[Node]:
        """Return the nodes of a trial that no verb makes: of a training only its warm-ups and its model."""
        try:
            nodes = list(nodes_of(with_values(self.config, values), self.refreshes).values())
        except RaydrError:
            # The trial has failed with this error, and has made nothing.
            return []
        return nodes if self.refreshes else [*(node for node in nodes if node.kind == "warmup"), nodes[-1]]

    def forget(
        self, ended: Iterable[Mapping[str, Any]], kinds: Collection[str] = (), kept: Collection[str] = ()
    ) -> None:
        """Remove vectors and indexes of trials, and checkpoints of stopped trainings.

        Named artefacts and those that another process uses are kept.

        Args:
            ended: values of ended trials; no running trial has the same values.
            kinds: further kinds to remove.
            kept: keys of further artefacts to keep.
        """
        places = Places.of(self.config.workdir)
        needed = places.named_keys() | set(kept)
        old = []
        for node in (node for values in ended for node in self.nodes(values)):
            folder = places.folder(node.kind, node.key)
            if node.kind == "model":
                old.append(checkpoint_folder(folder))
            if (node.temporary or node.kind in kinds) and node.key not in needed:
                old.append(folder)
        remove_unclaimed(places, old)


class TrialProcess(Trainable):  # type: ignore[misc]  # Ray is not typed
    """The process that Ray Tune runs for a trial; each of its steps is an epoch or a round.

    Tune waits for ``cleanup`` of a class, not of a function. It ends the trial's task, since workers of Ray Train
    outlive the process that started them.
    """

    def setup(self, config: dict[str, Any], objective: Objective, places: Folder) -> None:
        """Prepare the trial.

        Args:
            config: the ``number`` and the ``values`` of the trial.
            objective: the work.
            places: parent of the trials' folders.
        """
        # A killed search may propose other values under this number, for which another trial's epochs must not count.
        values = stable_hash64(json.dumps(config["values"], sort_keys=True, default=str))
        self.results = _results(config["values"], objective, places / f"trial-{config['number']:03d}-{values:016x}")

    def step(self) -> dict[str, Any]:
        return next(self.results)

    def cleanup(self) -> None:
        self.results.close()


def _results(values: Mapping[str, Any], objective: Objective, place: Folder) -> Generator[dict[str, Any], None, None]:
    """Yield the results for Tune: each row once, and at the end the error of a failed trial."""
    reported: list[Row] = []
    num_failures = 0

    def result(**more: Any) -> dict[str, Any]:
        last = {"epoch": reported[-1].epoch, "score": reported[-1].score} if reported else {}
        return {"rows": [row.model_dump() for row in reported], **last, **more}

    while True:
        try:
            for rows, finished in objective.follow(values, place):
                for row in rows[len(reported) :]:
                    reported.append(row)
                    done = finished and row is rows[-1]
                    # Besides done, which Tune also sets for trials that the scheduler stops.
                    yield result(finished=done, done=done)
            return
        except NodeLostError:
            # The loss of a node is no failure of the trial.
            continue
        except Exception as error:
            num_failures += 1
            if num_failures > objective.max_failures:
                yield result(error=root_cause(error), done=True)
                return


@contextmanager
def outside(task: Callable[..., Any], *arguments: Any, **resources: Any) -> Iterator[Any]:
    """Run a Ray task outside the trial's placement group, without retries.

    If the block ends before the task, the task is interrupted, as by Ctrl-C, and waited for. Ray Train then stops its
    workers and releases their resources. If its caller were killed, it would leave that to an actor that polls the
    dashboard.
    """
    options = {
        "num_cpus": 0,
        "max_retries": 0,
        # The process ends with the task, so that its memory and GPU are free for the next trial.
        "max_calls": 1,
        "scheduling_strategy": "DEFAULT",
        # Without the address, that actor fails on a machine with several Rays: it does not find its dashboard.
        "runtime_env": {"env_vars": {"RAY_API_SERVER_ADDRESS": ray.get_runtime_context().gcs_address}},
    }
    reference = ray.remote(**options | resources)(task).remote(*arguments)
    try:
        yield reference
    finally:
        # Not recursively: Ray Train's controller must stop in order, and not be interrupted.
        interrupt([reference], recursive=False)
        ray.wait([reference], timeout=_GONE_S)


def _result_of(work: Any) -> Any:
    with worker_errors():
        return ray.get(work)


@dataclass(frozen=True)
class HistoryWatcher:
    """A watcher that writes the metrics of all epochs after each epoch but the last, which ends with the saved model.

    Args:
        place: folder of the trial.
    """

    place: Folder

    def tell(self, message: str) -> None:
        """Ignore the lines of a single trial."""

    def step(self, progress: Progress, num_steps: int) -> None:
        """Ignore steps: only epochs count."""

    def epoch(self, progress: Progress) -> None:
        if not progress.finished:
            self.place.write_json(HISTORY, [row.metrics for row in progress.history])


def follow_training(config: RunConfig, place: Folder) -> News:
    """Train, and yield the rows so far repeatedly."""
    settings = config.train
    # Workers of Ray Train reserve their own resources.
    alone = {
        "num_cpus": settings.cpus_per_worker,
        "num_gpus": float(settings.use_gpu),
        "label_selector": settings.node_labels or config.ray.node_labels,
    }
    first = settings.loss.first_own_epoch(settings.num_epochs)
    rows = partial(rows_of, measure=settings.dev.measure, keep=settings.keep, first_epoch=first)
    with outside(train, config, place, **alone if settings.num_workers == 1 else {}) as training:
        while not ray.wait([training], timeout=_LOOK_S)[0]:
            if place.exists(HISTORY):
                yield rows(place.read_json(HISTORY)), False
        yield rows(_result_of(training)), True


def train(config: RunConfig, place: Folder) -> list[dict[str, float]]:
    """Train in the main thread, where Ray Train can be interrupted, and return the metrics of each epoch.

    A training with a single worker also makes its inputs in this process, with its CPUs and GPUs.
    """
    node = trained(config, HistoryWatcher(place))
    pool = ThisProcess(config.train.cpus_per_worker) if config.train.num_workers == 1 else RayPool()
    return [row["metrics"] for row in make(config, [node], pool).open(node).info["history"]]


def follow_refresh(config: RunConfig) -> News:
    """Run the rounds of a refresh and yield rows after each; the next round begins when the caller continues."""
    [finished] = map(FinishedRounds, lay_out(declare(config)))

    def rows() -> list[Row]:
        figures = [{f"dev {measure}": mean for measure, mean in means.items()} for means in finished.dev]
        return rows_of(figures, finished.arm.measure, "best")

    for [refresh_round] in next_rounds([finished], Inventory(Places.of(config.workdir)), single_rounds=True):
        if finished.dev:
            yield rows(), False
        with outside(make_round, config, refresh_round.number) as work:
            _result_of(work)
    yield rows(), True


def make_round(config: RunConfig, number: int) -> None:
    """Make a round of a refresh, numbered from 1, in a task."""
    [arm] = lay_out(declare(config))
    make(config, arm.rounds[number - 1].targets())


def declare(config: RunConfig) -> Context:
    """Return the context in which nodes of a trial's config are declared."""
    return Context(config, facts_of(config.workdir), config)


@lru_cache(maxsize=4)
def facts_of(workdir: str) -> Facts:
    """Return the facts of a working folder, which hold for a search: each Facts hashes checkpoints."""
    return Facts(Places.of(workdir))


def trained(config: RunConfig, watcher: Watcher | None = None) -> Node:
    """Declare the model of a training trial; the watcher receives its progress."""
    return Recipe(declare(config)).trained(watcher=watcher)


def nodes_of(config: RunConfig, refreshes: bool) -> dict[str, Node]:
    """Return all nodes of a trial by key; the model of a training is the last.

    Raises:
        RaydrError: the config of the trial is not valid.
    """
    if not refreshes:
        model = trained(config)
        return {**model.ancestors(), model.key: model}
    [arm] = lay_out(declare(config))
    return {key: node for round_ in arm.rounds for key, node in round_.nodes().items()}


def make(config: RunConfig, targets: Iterable[Node], pool: Pool | None = None) -> Inventory:
    """Make nodes of a trial, in a task outside the trial's own process.

    Args:
        config: config of the trial.
        targets: the nodes; their inputs are made as well.
        pool: pool of all nodes; chosen for each node if None.
    """
    targets = list(targets)
    inventory = Inventory(Places.of(config.workdir))
    nodes = {key: node for target in targets for key, node in {**target.ancestors(), target.key: target}.items()}
    with ray_session(config.ray), open_claims(inventory.places) as claims:
        claims.add(map(inventory.folder, nodes.values()))
        runner = Runner(
            inventory, NullTracker(), config.model_dump(mode="json"), cluster_capacity(), names={}, pool=pool
        )
        runner.make(required(inventory, targets))
    return inventory
