"""The process that writes the commands of trackers to MLflow; the only module that imports mlflow.

While the server is away or its disk is full, commands wait in memory and are retried. Commands that MLflow refuses are
left out. Both cases lead to a single warning.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, redirect_stderr, suppress
from io import StringIO
from pathlib import Path
from queue import Empty, Queue
from types import SimpleNamespace
from typing import Any

from raydr.console import say, warn
from raydr.errors import first_line
from raydr.store.folder import Folder
from raydr.store.identity import fingerprint_of
from raydr.tracking.tracker import DATABASE, RunAddress, Store

#: Tag that identifies the MLflow run of a run or a stage of a working folder, so that it can be resumed.
_ADDRESS = "raydr.address"
#: Without this tag MLflow guesses the kind of an experiment, and shows trainings as evaluations of language models.
_KIND = {"mlflow.experimentKind": "custom_model_development"}
#: Seconds until a server that did not answer is tried again; between two tries of a command; to gather metrics.
RETRY_AFTER_S, RETRY_S, GATHER_S = 300.0, 1.0, 0.2
#: Maximal number of waiting commands; beyond it the oldest are dropped.
_KEPT = 100_000
#: MLflow's limits for a call.
_METRICS_A_CALL, _PARAMS_A_CALL = 1000, 100
#: Name of MLflow's flavour, and the folder in which it expects the files of sentence-transformers, beside MLmodel.
_FLAVOUR, _FILES = "sentence_transformers", "model.sentence_transformer"

_Command = tuple[str, RunAddress, tuple[Any, ...]]


class Log:
    """Writer to a store. The methods from :meth:`begin` on are the commands that a tracker sends."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._client: Any = None
        self._run_ids: dict[str, str] = {}
        self._monitors: dict[str, Any] = {}

    @property
    def uri(self) -> str:
        """The store's URI for MLflow.

        A SQLite file has a relative path: SQLAlchemy, alembic and MLflow read ``?`` and ``%`` in a path differently.
        """
        if self.store.uri:
            return self.store.uri
        os.chdir(self.store.workdir.root)
        return f"sqlite:///{DATABASE}"

    def client(self) -> Any:
        """Return MLflow's client, after creating the database of a working folder if there is none."""
        if self._client is None:
            # MLflow waits for 120 s, seven times, by default.
            for name, value in {"TIMEOUT": "10", "MAX_RETRIES": "1", "BACKOFF_FACTOR": "1"}.items():
                os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{name}", value)
            from mlflow import MlflowClient

            for logger in ("mlflow", "alembic", "urllib3"):
                # Errors are raised and reported once; MLflow would print a traceback for each metric.
                logging.getLogger(logger).setLevel(logging.CRITICAL)
            with self._alone():
                if not self.store.uri and not os.path.exists(self.store.workdir.path(DATABASE)):
                    self._create_database()
                client = MlflowClient(tracking_uri=self.uri)
                client.search_experiments(max_results=1)
            self._client = client
        return self._client

    def _create_database(self) -> None:
        """Create the database in memory and publish it whole: on a disk, each of MLflow's migrations would wait."""
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        # The folder for files is a URI: MLflow writes a path unescaped into an SQL command.
        engine = SqlAlchemyStore("sqlite://", self._files).engine
        with self.store.workdir.publish(DATABASE) as path, closing(sqlite3.connect(path)) as database:
            engine.raw_connection().driver_connection.backup(database)
        engine.dispose()

    @property
    def connected(self) -> bool:
        """Whether the store has ever answered."""
        return self._client is not None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock the database of a local working folder against creation by another process."""
        folder = self.store.workdir
        if not folder.is_local:
            yield
            return
        Path(folder.root).mkdir(parents=True, exist_ok=True)
        with open(folder.path("mlflow.lock"), "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def run_id(self, address: RunAddress) -> str:
        """Return the id of the MLflow run of an address: an existing run or a new one."""
        if address.key not in self._run_ids:
            client, experiment_id = self.client(), self._experiment_id()
            parent = {"mlflow.parentRunId": self.run_id(address.parent)} if address.parent is not None else {}
            # A server holds runs of several working folders.
            own = fingerprint_of([self.store.workdir.url if self.store.uri else "", address.key])
            with self._alone():
                existing = client.search_runs([experiment_id], f"tags.`{_ADDRESS}` = '{own}'", max_results=1)
                tags = {"mlflow.runName": address.name, _ADDRESS: own, **address.tags, **parent}
                run = existing[0] if existing else client.create_run(experiment_id, tags=tags)
            self._run_ids[address.key] = str(run.info.run_id)
        return self._run_ids[address.key]

    @property
    def _files(self) -> str:
        return Path(self.store.workdir.path("mlflow-artifacts")).as_uri()

    def _experiment_id(self) -> str:
        client, name = self.client(), self.store.experiment
        if (experiment := client.get_experiment_by_name(name)) is not None:
            return str(experiment.experiment_id)
        files = None if self.store.uri else self._files
        return str(client.create_experiment(name, artifact_location=files, tags=_KIND))

    def begin(self, address: RunAddress) -> None:
        self.client().update_run(self.run_id(address), status="RUNNING")

    def end(self, address: RunAddress, status: str, now: int) -> None:
        if (monitor := self._monitors.pop(address.key, None)) is not None:
            monitor.finish()
        self.client().set_terminated(self.run_id(address), status, end_time=now)

    def sample(self, address: RunAddress) -> None:
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        run_id = self.run_id(address)
        self._monitors[address.key] = SystemMetricsMonitor(run_id, resume_logging=True, tracking_uri=self.uri)
        self._monitors[address.key].start()

    def params(self, address: RunAddress, params: dict[str, str]) -> None:
        from mlflow.entities import Param

        run_id = self.run_id(address)
        logged = self.client().get_run(run_id).data.params
        changed = sorted(key for key, value in params.items() if logged.get(key, value) != value)
        if changed:
            say(f"tracking: the resumed MLflow run keeps its first value of {', '.join(changed)}")
        new = [Param(key, value) for key, value in params.items() if key not in logged]
        for start in range(0, len(new), _PARAMS_A_CALL):
            self.client().log_batch(run_id, params=new[start : start + _PARAMS_A_CALL])

    def metrics(self, address: RunAddress, rows: list[tuple[str, float, int, int]]) -> None:
        from mlflow.entities import Metric

        for start in range(0, len(rows), _METRICS_A_CALL):
            batch = [Metric(*row) for row in rows[start : start + _METRICS_A_CALL]]
            self.client().log_batch(self.run_id(address), metrics=batch)

    def tags(self, address: RunAddress, tags: dict[str, str]) -> None:
        from mlflow.entities import RunTag

        self.client().log_batch(self.run_id(address), tags=[RunTag(key, value) for key, value in tags.items()])

    def artifact(self, address: RunAddress, path: str, folder: str) -> None:
        self.client().log_artifact(self.run_id(address), path, folder or None)

    def text(self, address: RunAddress, text: str, name: str) -> None:
        self.client().log_text(self.run_id(address), text, name)

    def dataset(self, address: RunAddress, name: str, digest: str, place: str, context: str) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        source, tags = json.dumps({"uri": place}), [InputTag("mlflow.data.context", context)]
        logged = DatasetInput(Dataset(name, digest[:36], "local", source), tags)
        self.client().log_inputs(self.run_id(address), [logged])

    def measures(self, address: RunAddress, key: str, values: dict[str, float]) -> None:
        from mlflow.entities import Metric

        client, now = self.client(), int(time.time() * 1000)
        for run in client.search_runs([self._experiment_id()], f"tags.`raydr.key` = '{key}'", max_results=1):
            models = run.outputs.model_outputs if run.outputs else []
            model_id = models[-1].model_id if models else None
            metrics = [Metric(name, value, now, 0, model_id) for name, value in values.items()]
            client.log_batch(run.info.run_id, metrics=metrics)

    def model(self, address: RunAddress, url: str, name: str, registered: str) -> None:
        """Log the files of a model as a model of MLflow 3, an output of the run: ``models:/ID`` and ``runs:/RUN/NAME``.

        MLflow's own function would load the model into memory with sentence-transformers.
        """
        local = Path(Folder(url).localize_all())
        if not (local / "modules.json").is_file() or not (local / "1_Pooling").is_dir():
            # sentence-transformers opens only models with a single tower and a single vector for each text.
            return
        import mlflow
        from mlflow.models import Model, ModelSignature
        from mlflow.types import ColSpec, Schema

        def save_model(path: str, mlflow_model: Model) -> None:
            mlflow_model.signature = ModelSignature(Schema([ColSpec("string")]))
            mlflow_model.add_flavor("python_function", loader_module=f"mlflow.{_FLAVOUR}", data=_FILES)
            mlflow_model.add_flavor(_FLAVOUR)
            shutil.copytree(local, f"{path}/{_FILES}")
            mlflow_model.save(f"{path}/MLmodel")

        run_id = self.run_id(address)
        # Model.log reads URI and experiment from the process, and prints the registered model.
        mlflow.set_tracking_uri(self.uri)
        mlflow.set_experiment(experiment_id=self._experiment_id())
        with redirect_stderr(StringIO()):
            Model.log(
                None, SimpleNamespace(__name__=_FLAVOUR, save_model=save_model), registered or None, run_id=run_id,
                name=name, model_type="retriever",
            )  # fmt: skip


def is_away(error: BaseException) -> bool:
    """Return whether an error comes from a server or disk that does not work now, and not from the command."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    if isinstance(error, MlflowException):
        return error.error_code in ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "IO_ERROR")
    return isinstance(error, SQLAlchemyError | OSError) and not isinstance(error, FileNotFoundError)


def write_all(commands: Queue[_Command | None], log: Log) -> None:
    """Run commands until None arrives; the rest is lost if the server is away then."""
    waiting, ended, warned, retry_at = deque[_Command](maxlen=_KEPT), False, False, 0.0
    while waiting or not ended:
        away_s = max(0.0, retry_at - time.monotonic())
        if ended and away_s:
            return
        # Commands that arrive within a moment are written together.
        seconds = away_s if waiting else None
        with suppress(Empty):
            while not ended:
                if (command := commands.get(timeout=seconds)) is None:
                    ended = True
                else:
                    waiting.append(command)
                    seconds = GATHER_S if command[0] == "metrics" else 0.0
        if not waiting or retry_at > time.monotonic():
            continue
        command = _next(waiting)
        if (error := _carry_out(command, log)) is None:
            continue
        consequence = "this entry is left out"
        if not log.connected or is_away(error):
            waiting.appendleft(command)
            retry_at = time.monotonic() + RETRY_AFTER_S
            consequence = f"entries are kept, and sending them is tried again every {RETRY_AFTER_S:.0f} s"
        if not warned:
            warned = True
            # The database's own error names the cause, such as a full disk; SQLAlchemy's first line may not.
            cause = first_line(getattr(error, "orig", None) or error)
            warn(
                f"tracking at {log.store.shown} does not work ({cause}). The work goes on; {consequence}. Check "
                "tracking.uri, or set tracking.enabled: false"
            )


def _next(waiting: deque[_Command]) -> _Command:
    """Take the first command, joined with the metrics of the same run that follow it directly."""
    name, address, details = waiting.popleft()
    rows = list(details[0]) if name == "metrics" else []
    while rows and waiting and waiting[0][:2] == (name, address):
        rows += waiting.popleft()[2][0]
    return (name, address, (rows,)) if rows else (name, address, details)


def _carry_out(command: _Command, log: Log) -> Exception | None:
    """Run a command, with a second try if necessary; return the error of a failed command."""
    name, address, details = command
    for is_last in (False, True):
        try:
            log.client()
            getattr(log, name)(address, *details)
            break
        # Errors of MLflow, SQLAlchemy and alembic have no common base class, and none may end the work.
        except Exception as error:
            if is_last or (log.store.uri and not log.connected):
                return error
        # Another process may have locked the database, or made the same experiment.
        time.sleep(RETRY_S)
    return None


def probe_tracking(store: Store) -> str:
    """Return the error of a store that cannot be used now, in one line; empty if it answers."""
    try:
        if store.uri:
            Log(store).client().search_experiments(max_results=1)
        else:
            with sqlite3.connect(store.workdir.path(DATABASE)) as database:
                database.execute("SELECT COUNT(*) FROM experiments").fetchone()
    # Errors of MLflow, SQLAlchemy, alembic and the network have no common base class.
    except Exception as error:
        return first_line(error)
    return ""


def _address(store: Store, raw: Mapping[str, Any]) -> RunAddress:
    """Return the address that :func:`dataclasses.asdict` turned into ``raw``."""
    parent = raw["parent"] and _address(store, raw["parent"])
    return RunAddress(store, raw["name"], raw["tags"], parent)


def _receive(store: Store, commands: Queue[_Command | None]) -> None:
    """Read commands as soon as they arrive: the sender must not wait."""
    for line in sys.stdin.buffer:
        # A verb that was killed may have left the last line incomplete.
        with suppress(json.JSONDecodeError):
            name, address, *details = json.loads(line)
            commands.put((name, _address(store, address), tuple(details)))
    commands.put(None)


def main() -> None:
    """Run the process; its standard input is the store and then commands, each a line of JSON."""
    raw, commands = json.loads(sys.stdin.buffer.readline()), Queue[_Command | None]()
    store = Store(raw["uri"], raw["experiment"], Folder(**raw["workdir"]))
    threading.Thread(target=_receive, args=[store, commands], daemon=True).start()
    write_all(commands, Log(store))
