"""Tracking with MLflow: a parent run with a nested run for each stage.

MLflow takes seconds to import and to answer. A separate process (:mod:`raydr.tracking.mlflow_writer`) therefore writes
to it, and the verb waits for that process only at its end. Errors of tracking are warnings and never stop the work.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from raydr.component import Config
from raydr.console import warn
from raydr.errors import ConfigError, first_line
from raydr.store.folder import Folder
from raydr.store.identity import fingerprint_of, flatten

#: MLflow's limit for the value of a setting, in characters.
_PARAM_LENGTH = 6000
#: The SQLite file in a working folder.
DATABASE = "mlflow.db"

#: MLflow's status of a run at its end.
EndStatus = Literal["FINISHED", "FAILED", "KILLED"]


class TrackingConfig(Config):
    """Tracking of results with MLflow."""

    enabled: bool = True
    """Whether anything is logged to MLflow."""

    uri: str = ""
    """MLflow tracking URI; a SQLite file in the working folder if empty. Credentials only by environment."""

    experiment: str = "raydr"
    """Name of the experiment in MLflow."""

    log_models: bool = True
    """Log the models of ``raydr train``, for example for ``mlflow models serve``. Models of rounds, trials and arms are
    not logged, nor models with two towers or several vectors per text."""

    registered_model: str = ""
    """Name under which each of these models is registered as a new version; empty registers none."""

    system_metrics: bool = True
    """Sample CPU, memory and GPU use while stages run."""


@dataclass(frozen=True)
class Store:
    """The place where MLflow keeps the runs of a working folder.

    Args:
        uri: URI of MLflow; empty for a SQLite file in the working folder.
        experiment: name of the experiment.
        workdir: the working folder; without ``uri`` it holds the SQLite file and logged files.
    """

    uri: str
    experiment: str
    workdir: Folder

    @classmethod
    def of(cls, config: TrackingConfig, workdir: Folder) -> Store:
        """Return the configured store.

        Raises:
            ConfigError: the working folder is not local, so it cannot hold a SQLite file.
        """
        if not config.uri and not workdir.is_local:
            raise ConfigError(
                f"tracking.uri is empty and the working folder {workdir} is not local, so it cannot hold a SQLite "
                "file. Set tracking.uri to an MLflow server, or tracking.enabled: false"
            )
        return cls(config.uri, config.experiment, workdir.absolute())

    @property
    def shown(self) -> str:
        """The URI for people and for ``mlflow ui --backend-store-uri``.

        >>> Store("", "raydr", Folder("/data/work")).shown
        'sqlite:////data/work/mlflow.db'
        """
        return self.uri or f"sqlite:///{self.workdir.path(DATABASE)}"


@dataclass(frozen=True)
class RunAddress:
    """The identity of an MLflow run, which belongs to a run of raydr or to a stage: name, tags and parent."""

    store: Store
    name: str
    tags: Mapping[str, str] = field(default_factory=dict)
    parent: RunAddress | None = None

    @property
    def key(self) -> str:
        """A key that is unique in the working folder."""
        own = f"{self.name}@{fingerprint_of(dict(self.tags))[:12]}" if self.tags else self.name
        return f"{self.parent.key}/{own}" if self.parent else own


def metric_name(name: str) -> str:
    """Return a name that MLflow accepts, without spaces; MLflow groups metrics by the part before a slash.

    >>> metric_name("test/bm25/recall@20"), metric_name("accuracy@5 (answer)"), metric_name("dev RR@10")
    ('test/bm25/recall_20', 'accuracy_5_answer', 'dev_RR_10')
    """
    return re.sub(r"[^\w\-.:/]+", "_", name, flags=re.ASCII).rstrip("_")


class _Writer:
    """The process that writes to a store, shared by all trackers of this process; it ends with the last of them."""

    _by_store: ClassVar[dict[Store, _Writer]] = {}
    _lock = threading.Lock()

    def __init__(self, store: Store) -> None:
        self.store, self.users, self.broken = store, 0, False
        self.process: subprocess.Popen[bytes] | None = None
        self.sending = threading.Lock()

    @classmethod
    @contextmanager
    def using(cls, store: Store) -> Iterator[_Writer]:
        """Open the writer of a store for the duration of the block."""
        with cls._lock:
            writer = cls._by_store.setdefault(store, cls(store))
            writer.users += 1
        try:
            yield writer
        finally:
            with cls._lock:
                writer.users -= 1
                if not writer.users:
                    del cls._by_store[store]
            if not writer.users:
                writer.close()

    def send(self, command: str, address: RunAddress, *details: Any) -> None:
        """Send a command to the process; commands are methods of :class:`raydr.tracking.mlflow_writer.Log`."""
        with self.sending:
            try:
                if self.process is None and not self.broken:
                    self._start()
                self._write([command, asdict(address), *details])
            # No error of tracking may end the work.
            except Exception as error:
                self.broken = True
                warn(f"tracking at {self.store.shown} does not work ({first_line(error)}). The work goes on without it")

    def _start(self) -> None:
        paths = [str(Path(path).absolute()) for path in sys.path]
        code = f"import sys; sys.path[:] = {paths!r}; from raydr.tracking.mlflow_writer import main; main()"
        # A separate process group: Ctrl-C must reach only the verb, which then reports the end of its runs.
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, process_group=0
        )
        self._write(asdict(self.store))

    def _write(self, message: Any) -> None:
        if self.process is not None and self.process.stdin is not None and not self.broken:
            # A date in a tag must not end the tracking.
            self.process.stdin.write(json.dumps(message, default=str).encode() + b"\n")
            self.process.stdin.flush()

    def close(self) -> None:
        """Take no more commands, since threads of an interrupted verb may send some; wait until others are written."""
        with self.sending:
            self.broken = True
        if self.process is not None:
            self.process.communicate()


@contextmanager
def open_run(
    config: TrackingConfig, name: str, workdir: Folder, tags: Mapping[str, str] | None = None
) -> Iterator[Tracker]:
    """Open the parent run for the duration of the block; it is FAILED after an exception, KILLED after Ctrl-C.

    Args:
        config: config of tracking; if it is switched off, the tracker does nothing.
        name: name of the run. The same name and tags in the same working folder resume the same MLflow run.
        workdir: the working folder.
        tags: identify the run, for example by the fingerprint of its config.
    """
    if not config.enabled:
        yield NullTracker()
        return
    store = Store.of(config, workdir)
    with _Writer.using(store) as writer:
        run = Tracker(writer, RunAddress(store, name, dict(tags or {})), config.system_metrics)
        run._send("begin")
        with run.ending():
            yield run


@dataclass(frozen=True)
class TrackerHandle:
    """The address of a run for other processes; ``open`` it in the worker that logs (rank 0 only)."""

    address: RunAddress | None
    host: str = field(default_factory=socket.gethostname)

    @contextmanager
    def open(self) -> Iterator[Tracker]:
        """Open the run for logging; only the process that started the run ends it."""
        here, address = socket.gethostname(), self.address
        if address is not None and self.host != here and address.store.shown.startswith("sqlite:"):
            warn(
                f"tracking is at {address.store.shown} on {self.host}, which {here} cannot write to: this worker logs "
                "nothing. Set tracking.uri to an MLflow server."
            )
            address = None
        if address is None:
            yield NullTracker()
            return
        with _Writer.using(address.store) as writer:
            yield Tracker(writer, address, system_metrics=False)


class Tracker:
    """An MLflow run; see :func:`open_run`.

    Args:
        writer: writer of the run's store.
        address: address of the run.
        system_metrics: sample the machine while nested stages run.
    """

    def __init__(self, writer: _Writer | None, address: RunAddress | None, system_metrics: bool) -> None:
        self._writer = writer
        self._address = address
        self._system_metrics = system_metrics

    def _send(self, command: str, *details: Any) -> None:
        if self._writer is not None and self._address is not None:
            self._writer.send(command, self._address, *details)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log settings; nested mappings become dotted keys. MLflow never changes a logged setting."""
        self._send("params", {key: str(value)[:_PARAM_LENGTH] for key, value in flatten(params).items() if key})

    def log_metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        """Log numbers under names from :func:`metric_name`; they are sent in batches."""
        now = int(time.time() * 1000)
        self._send("metrics", [(metric_name(name), float(value), now, int(step)) for name, value in metrics.items()])

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Log facts that may change, for example fingerprints."""
        self._send("tags", dict(tags))

    def log_artifact(self, path: str | Path, folder: str = "") -> None:
        """Log a local file."""
        self._send("artifact", str(Path(path).absolute()), folder)

    def log_text(self, text: str, name: str) -> None:
        """Log a text as a file of this name."""
        self._send("text", text, name)

    def log_dataset(self, name: str, digest: str, place: str, context: str) -> None:
        """Log an MLflow data set.

        Args:
            name: name of the data.
            digest: digest of their content.
            place: path or URL of the data.
            context: their use, for example ``training``.
        """
        self._send("dataset", name, digest, place, context)

    def log_model(self, folder: Folder, name: str, registered: str = "") -> None:
        """Log a model that sentence-transformers can open; ignore other models.

        Args:
            folder: folder of the model.
            name: name of the model in MLflow.
            registered: name of the registered model that gets a new version; none if empty.
        """
        self._send("model", folder.absolute().url, re.sub(r"[^\w-]+", "-", name), registered)

    def log_measures(self, key: str, values: Mapping[str, float]) -> None:
        """Log measures of a model into the run that made it, so that MLflow can compare such runs.

        Args:
            key: key of the model; ignored if no run of the experiment has it.
            values: by name; names go through :func:`metric_name`.
        """
        self._send("measures", key, {metric_name(name): float(value) for name, value in values.items()})

    @contextmanager
    def stage(self, name: str, tags: Mapping[str, str] | None = None) -> Iterator[Tracker]:
        """Open a nested run for the duration of the block; it is FAILED after an exception.

        The same name and tags (with fingerprints) resume the same MLflow run.
        """
        stage = self.child(name, tags)
        with stage.ending():
            if self._system_metrics:
                # CPU, memory, disk, network and GPU of this node, until the run ends.
                stage._send("sample")
            yield stage

    def child(self, name: str, tags: Mapping[str, str] | None = None) -> Tracker:
        """Begin a nested run that lasts until its :meth:`end`, for runs that overlap; resumed like a :meth:`stage`."""
        if self._address is None:
            return self
        address = RunAddress(self._address.store, name, dict(tags or {}), self._address)
        nested = Tracker(self._writer, address, self._system_metrics)
        nested._send("begin")
        return nested

    def handle(self) -> TrackerHandle:
        """Return a picklable handle with which a worker logs into the same run."""
        return TrackerHandle(self._address)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """End the run with the block, with the status that fits."""
        status: EndStatus = "FAILED"
        try:
            yield
            status = "FINISHED"
        except KeyboardInterrupt:
            status = "KILLED"
            raise
        finally:
            self.end(status)

    def end(self, status: EndStatus) -> None:
        """End the run with a status."""
        self._send("end", status, int(time.time() * 1000))


class NullTracker(Tracker):
    """A tracker that does nothing, for tracking that is switched off."""

    def __init__(self) -> None:
        super().__init__(None, None, system_metrics=False)
