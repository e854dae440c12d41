"""Settings of MLflow tracking; light to import."""

from __future__ import annotations

from raydr.component import Config


class TrackingConfig(Config):
    """Where results are tracked."""

    #: Whether anything is logged to MLflow.
    enabled: bool = True
    #: MLflow tracking URI; a SQLite file in the working folder if empty. Credentials only by environment.
    uri: str = ""
    #: Name of the experiment in MLflow.
    experiment: str = "raydr"
    #: Sample CPU, memory and GPU use while stages run.
    system_metrics: bool = True
