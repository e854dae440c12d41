"""Tracking with MLflow: one parent run, a nested run a stage. Only ``tracking`` and ``mlflow_*`` import mlflow.

Tracking never stops the work. While the server is away or its disk is full, metrics, settings and tags wait in memory;
files logged in that time are left out.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from raydr.errors import ArtifactError
from raydr.runtime.console import say, warn
from raydr.runtime.mlflow_models import log_model, measure, opens_there
from raydr.runtime.mlflow_runs import Connection, RunMaker, RunPlace, tracking_uri
from raydr.runtime.tracking_config import TrackingConfig
from raydr.store.folder import Folder
from raydr.store.identity import flatten

#: Metrics are sent when so many wait, or so many seconds after the last time.
_FLUSH_ROWS, _FLUSH_S = 500, 10.0
#: Metrics kept while the server is away; the oldest go first.
_KEPT_ROWS = 100_000
#: MLflow's limits of one call and of one value.
_METRICS_A_CALL, _PARAMS_A_CALL, _PARAM_LENGTH = 1000, 100, 6000

#: How a run may end, in MLflow's words.
EndStatus = Literal["FINISHED", "FAILED", "KILLED"]

T = TypeVar("T")


class _Monitor(Protocol):
    def finish(self) -> None: ...


def metric_name(name: str) -> str:
    """A name that MLflow accepts, without spaces: it makes groups of what is before a slash.

    >>> metric_name("test/bm25/recall@20 (qrels)"), metric_name("accuracy@5 (answer)"), metric_name("dev RR@10")
    ('test/bm25/recall_20', 'accuracy_5_answer', 'dev_RR_10')
    """
    return re.sub(r"[^\w\-.:/]+", "_", name.removesuffix(" (qrels)"), flags=re.ASCII).rstrip("_")


@contextmanager
def open_run(
    config: TrackingConfig, name: str, workdir: Folder, tags: Mapping[str, str] | None = None
) -> Iterator[Tracker]:
    """The parent run for the duration of the block; FAILED if it ends with an exception, KILLED if by Ctrl-C.

    Args:
        config: where to; a tracker that does nothing if tracking is switched off.
        name: of the run. The same name and tags in the same working folder resume the same MLflow run.
        workdir: the working folder, which remembers the run's id.
        tags: what identifies the run, for example the fingerprint of its config.
    """
    if not config.enabled:
        yield NullTracker()
        return
    connection = Connection(tracking_uri(config, workdir))
    place = RunPlace(config.experiment, workdir, (workdir / "mlflow-artifacts") if not config.uri else None)
    run = Tracker(connection, RunMaker(connection, place, name, dict(tags or {})), config.system_metrics)
    with run.running():
        yield run


@dataclass(frozen=True)
class TrackerHandle:
    """A run by its address; ``open`` it in the worker that logs (rank 0 only)."""

    uri: str
    run_id: str
    host: str

    @contextmanager
    def open(self) -> Iterator[Tracker]:
        """The run, for logging from another process; its state stays with the process that started it."""
        if not self.run_id:
            yield NullTracker()
            return
        if self.uri.startswith("sqlite:") and self.host != socket.gethostname():
            warn(
                f"tracking is at {self.uri} on {self.host}, which {socket.gethostname()} cannot write to: this worker "
                "logs nothing. Set tracking.uri to an MLflow server."
            )
            yield NullTracker()
            return
        tracker = Tracker(Connection(self.uri), lambda: self.run_id, system_metrics=False)
        try:
            yield tracker
        finally:
            tracker.flush()


class Tracker:
    """One MLflow run; see :func:`open_run`. Everything but files is kept here first and sent by :meth:`flush`.

    Args:
        connection: to the server.
        make_run: returns the run's id, creating the run if needed; may fail as long as the server is away.
        system_metrics: sample the machine while nested stages run.
    """

    def __init__(self, connection: Connection, make_run: Callable[[], str], system_metrics: bool) -> None:
        self._connection = connection
        self._make_run = make_run
        self._system_metrics = system_metrics
        self._run_id: str | None = None
        self._params: dict[str, str] = {}
        self._tags: dict[str, str] = {}
        self._metrics: list[tuple[str, float, int, int]] = []
        self._flushed_at = time.monotonic()
        #: Stages that run side by side log into the same parent.
        self._lock = threading.RLock()

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log settings; nested mappings become dotted keys. MLflow never changes a setting that a run has."""
        with self._lock:
            self._params.update((key, str(value)[:_PARAM_LENGTH]) for key, value in flatten(params).items() if key)
        self.flush()

    def log_metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        """Log numbers; they are sent in batches. Names go through :func:`metric_name`."""
        now = int(time.time() * 1000)
        with self._lock:
            self._metrics.extend((metric_name(name), float(value), now, step) for name, value in metrics.items())
            del self._metrics[:-_KEPT_ROWS]
        if len(self._metrics) >= _FLUSH_ROWS or time.monotonic() - self._flushed_at >= _FLUSH_S:
            self.flush()

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Log facts that may change, for example fingerprints."""
        with self._lock:
            self._tags.update(tags)
        self.flush()

    def log_artifact(self, path: str | Path, folder: str = "") -> None:
        """Log a local file.

        Raises:
            ArtifactError: it does not exist.
        """
        if not Path(path).is_file():
            raise ArtifactError(f"there is no file {path} to log; expected one that is written before")
        self._send(lambda client, run_id: client.log_artifact(run_id, str(path), folder or None))

    def log_text(self, text: str, name: str) -> None:
        """Log a text as a file of this name."""
        self._send(lambda client, run_id: client.log_text(run_id, text, name))

    def log_dataset(self, name: str, digest: str, place: str, context: str) -> None:
        """Log what was worked on as an MLflow data set.

        Args:
            name: of the data.
            digest: tells contents apart.
            place: where they are.
            context: what for, for example ``training``.
        """
        from mlflow.entities import Dataset, DatasetInput, InputTag

        source = json.dumps({"uri": place})
        used = DatasetInput(Dataset(name, digest[:36], "local", source), [InputTag("mlflow.data.context", context)])
        self._send(lambda client, run_id: client.log_inputs(run_id, [used]))

    def log_model(self, folder: Folder, name: str, registered: str = "") -> None:
        """Log a model that sentence-transformers opens; nothing happens with another.

        Args:
            folder: of the model.
            name: what it is called.
            registered: the registered model that it becomes a version of; none if empty.
        """
        local = Path(folder.localize_all())
        if opens_there(local):
            called = re.sub(r"[^\w-]+", "-", name)
            self._send(lambda client, run_id: log_model(client, run_id, local, called, registered))

    def log_measures(self, key: str, values: Mapping[str, float]) -> None:
        """Log measures of a model into the run that made it, so that runs of models are compared under one name.

        Args:
            key: of the model; nothing happens where no run of the experiment has it.
            values: by name; names go through :func:`metric_name`.
        """
        named = {metric_name(name): value for name, value in values.items()}
        self._send(lambda client, run_id: measure(client, client.get_run(run_id).info.experiment_id, key, named))

    @contextmanager
    def stage(self, name: str, tags: Mapping[str, str] | None = None) -> Iterator[Tracker]:
        """A nested run for the duration of the block; FAILED if it ends with an exception.

        The same name and tags (put fingerprints there) resume the same MLflow run.
        """
        stage = self._nested(name, tags)
        with stage.running(), stage.sampled():
            yield stage

    def child(self, name: str, tags: Mapping[str, str] | None = None) -> Tracker:
        """A nested run that lasts until its :meth:`end`, for runs that overlap; resumed like a :meth:`stage`."""
        nested = self._nested(name, tags)
        nested.begin()
        return nested

    def _nested(self, name: str, tags: Mapping[str, str] | None) -> Tracker:
        parent = self._make_run
        if not isinstance(parent, RunMaker):
            raise TypeError("a run opened from a handle has no stages of its own: open them where the run was started")
        self.flush()
        maker = RunMaker(self._connection, parent.place, name, dict(tags or {}), parent)
        return Tracker(self._connection, maker, self._system_metrics)

    def flush(self) -> None:
        """Send what is waiting."""
        self._flushed_at = time.monotonic()
        self._send(self._send_waiting)

    def handle(self) -> TrackerHandle:
        """What a worker needs to log into the same run; picklable."""
        self.flush()
        return TrackerHandle(self._connection.uri, self._run_id or "", socket.gethostname())

    @contextmanager
    def running(self) -> Iterator[None]:
        """Mark the run as running, and how it ended."""
        self.begin()
        status: EndStatus = "FAILED"
        try:
            yield
            status = "FINISHED"
        except KeyboardInterrupt:
            status = "KILLED"
            raise
        finally:
            self.end(status)

    def begin(self) -> None:
        """Mark the run as running."""
        self._send(lambda client, run_id: client.update_run(run_id, status="RUNNING"))

    def end(self, status: EndStatus) -> None:
        """Send what is waiting, and say how the run ended."""
        self.flush()
        self._send(lambda client, run_id: client.set_terminated(run_id, status))

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Sample CPU, memory, disk, network and GPU of this node for the duration of the block."""
        monitor = self._send(self._start_monitor) if self._system_metrics else None
        try:
            yield
        finally:
            if monitor is not None:
                monitor.finish()

    def _start_monitor(self, client: Any, run_id: str) -> _Monitor:
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        monitor = SystemMetricsMonitor(run_id, resume_logging=True, tracking_uri=self._connection.uri)
        monitor.start()
        started: _Monitor = monitor
        return started

    def _send(self, action: Callable[[Any, str], T]) -> T | None:
        def send(client: Any) -> T:
            if self._run_id is None:
                self._run_id = self._make_run()
            return action(client, self._run_id)

        with self._lock:
            return self._connection.call(send)

    def _send_waiting(self, client: Any, run_id: str) -> None:
        from mlflow.entities import Metric, Param, RunTag

        if self._tags:
            client.log_batch(run_id, tags=[RunTag(key, value) for key, value in self._tags.items()])
            self._tags.clear()
        if self._params:
            params = [Param(key, value) for key, value in self._new_params(client, run_id).items()]
            for start in range(0, len(params), _PARAMS_A_CALL):
                client.log_batch(run_id, params=params[start : start + _PARAMS_A_CALL])
            self._params.clear()
        while self._metrics:
            batch = self._metrics[:_METRICS_A_CALL]
            client.log_batch(run_id, metrics=[Metric(*row) for row in batch])
            del self._metrics[: len(batch)]

    def _new_params(self, client: Any, run_id: str) -> dict[str, str]:
        there = client.get_run(run_id).data.params
        changed = sorted(key for key, value in self._params.items() if there.get(key, value) != value)
        if changed:
            say(f"tracking: the resumed MLflow run keeps its first value of {', '.join(changed)}")
        return {key: value for key, value in self._params.items() if key not in there}


class NullTracker(Tracker):
    """Does nothing: tracking is switched off."""

    def __init__(self) -> None:
        super().__init__(Connection(""), str, system_metrics=False)

    def log_metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        # They would wait for ever.
        pass

    def _nested(self, name: str, tags: Mapping[str, str] | None) -> Tracker:
        return self

    def log_dataset(self, name: str, digest: str, place: str, context: str) -> None:
        # MLflow need not be imported.
        pass

    def log_model(self, folder: Folder, name: str, registered: str = "") -> None:
        pass

    def _send(self, action: Callable[[Any, str], T]) -> T | None:
        return None
