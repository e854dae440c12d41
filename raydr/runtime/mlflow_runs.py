"""Runs on an MLflow server: calls that survive its absence, and which MLflow run belongs to which run and stage.

Whatever goes wrong in MLflow leads to one warning; then nothing is sent until :data:`RETRY_AFTER_S` have passed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from raydr.errors import ConfigError, first_line
from raydr.runtime.console import warn
from raydr.runtime.tracking_config import TrackingConfig
from raydr.store.folder import Folder
from raydr.store.identity import fingerprint_of

#: File in the working folder that remembers which MLflow run belongs to which run and stage.
RUN_IDS = "mlflow-runs.json"
#: Without it MLflow's pages guess what an experiment is, and show runs of models as evaluations of language models.
_KIND = {"mlflow.experimentKind": "custom_model_development"}
#: Seconds without a call to a server that did not answer.
RETRY_AFTER_S = 300.0

T = TypeVar("T")

#: Stages that run side by side make their runs at the same time.
_RECORD = threading.Lock()


def tracking_uri(config: TrackingConfig, workdir: Folder) -> str:
    """The URI that results are tracked at: the configured one, else a SQLite file in the working folder.

    Raises:
        ConfigError: the working folder is not local, so it cannot hold a SQLite file.

    >>> tracking_uri(TrackingConfig(), Folder("/data/work"))
    'sqlite:////data/work/mlflow.db'
    """
    if config.uri:
        return config.uri
    if not workdir.is_local:
        raise ConfigError(
            f"tracking.uri is empty and the working folder {workdir} is not local: a SQLite file cannot live there. "
            "Set tracking.uri to an MLflow server, or tracking.enabled: false"
        )
    return f"sqlite:///{workdir.path('mlflow.db')}"


def sqlite_file(uri: str) -> Path | None:
    """The file of a SQLite URI; None of others."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def probe_tracking(uri: str) -> str:
    """Why nothing can be tracked at a URI now, in one line; empty if it answers."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        Connection(uri).client().search_experiments(max_results=1)
    except (MlflowException, SQLAlchemyError, OSError) as error:
        return first_line(error)
    return ""


class Connection:
    """Calls to one MLflow server; pauses after a failure."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._client: Any = None
        self._away_until = 0.0
        self._warned = False

    def client(self) -> Any:
        if self._client is None:
            # MLflow waits for 120 s, seven times, by default; a training step must not.
            os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
            os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
            os.environ.setdefault("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "1")
            for name in ("mlflow", "alembic", "urllib3"):
                # What goes wrong is raised, and told once; MLflow would print a traceback at each metric.
                logging.getLogger(name).setLevel(logging.CRITICAL)
            from mlflow import MlflowClient

            self._client = MlflowClient(tracking_uri=self.uri)
        return self._client

    def call(self, action: Callable[[Any], T]) -> T | None:
        """What ``action`` returns, None if the server is away."""
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        if time.monotonic() < self._away_until:
            return None
        try:
            return action(self.client())
        except (MlflowException, SQLAlchemyError, OSError) as error:
            self._away_until = time.monotonic() + RETRY_AFTER_S
            if not self._warned:
                self._warned = True
                # What SQLAlchemy says first may be its own detail, and not that a disk is full.
                cause = getattr(error, "orig", None) or error
                warn(
                    f"tracking at {self.uri} does not work ({first_line(cause)}). The work goes on; metrics are kept, "
                    f"and sending them is tried again every {RETRY_AFTER_S:.0f} s. "
                    "Check tracking.uri, or set tracking.enabled: false"
                )
            return None


@dataclass(frozen=True)
class RunPlace:
    """Where runs are made: an experiment, and the working folder that remembers their ids."""

    experiment: str
    workdir: Folder
    #: Folder for files, where raydr and not a server decides about it.
    artifacts: Folder | None

    def experiment_id(self, client: Any) -> str:
        found = client.get_experiment_by_name(self.experiment)
        if found is not None:
            return str(found.experiment_id)
        location = Path(self.artifacts.root).as_uri() if self.artifacts is not None else None
        return str(client.create_experiment(self.experiment, artifact_location=location, tags=_KIND))


@dataclass
class RunMaker:
    """Finds the MLflow run of a name and tags in the working folder's record, or creates it."""

    connection: Connection
    place: RunPlace
    name: str
    tags: dict[str, str]
    parent: RunMaker | None = None
    _run_id: str = ""

    @property
    def key(self) -> str:
        """Tells runs of the working folder apart."""
        own = f"{self.name}@{fingerprint_of(self.tags)[:12]}" if self.tags else self.name
        return f"{self.parent.key}/{own}" if self.parent else own

    def __call__(self) -> str:
        if not self._run_id:
            client = self.connection.client()
            self._run_id = self._resumed(client) or self._created(client)
        return self._run_id

    def _resumed(self, client: Any) -> str:
        if not self.place.workdir.exists(RUN_IDS):
            return ""
        run_id = str(self.place.workdir.read_json(RUN_IDS).get(f"{self.connection.uri} {self.key}", ""))
        if not run_id:
            return ""
        # The store may have been deleted, or the run: then a new one is made.
        known = client.search_runs([self.place.experiment_id(client)], f"attributes.run_id = '{run_id}'")
        return run_id if known else ""

    def _numbered(self) -> str:
        """The name; that of a command's run with a number from the second one on, which has other settings."""
        there = self.place.workdir.exists(RUN_IDS) and self.parent is None
        start = f"{self.connection.uri} {self.name}"
        before = self.place.workdir.read_json(RUN_IDS) if there else {}
        count = sum("/" not in key.removeprefix(start) for key in before if key.startswith((f"{start}@", f"{start}/")))
        return f"{self.name} ({count + 1})" if count else self.name

    def _created(self, client: Any) -> str:
        tags = {"mlflow.runName": self._numbered(), **self.tags}
        if self.parent is not None:
            tags["mlflow.parentRunId"] = self.parent()
        run_id = str(client.create_run(self.place.experiment_id(client), tags=tags).info.run_id)
        workdir = self.place.workdir
        with _RECORD:
            ids = workdir.read_json(RUN_IDS) if workdir.exists(RUN_IDS) else {}
            workdir.write_json(RUN_IDS, ids | {f"{self.connection.uri} {self.key}": run_id})
        return run_id
