"""Settings of MLflow tracking; light to import."""

from __future__ import annotations

from raydr.component import Config


class TrackingConfig(Config):
    """Where results are tracked."""

    enabled: bool = True
    """Whether anything is logged to MLflow."""

    uri: str = ""
    """MLflow tracking URI; a SQLite file in the working folder if empty. Credentials only by environment."""

    experiment: str = "raydr"
    """Name of the experiment in MLflow."""

    log_models: bool = True
    """Log the models that ``raydr train`` makes, for ``mlflow models serve`` and others; rounds, trials and arms are
    not. A model with two towers, or several vectors a text, is not either."""

    registered_model: str = ""
    """Name under which these models are registered, a version each; they are not if empty."""

    system_metrics: bool = True
    """Sample CPU, memory and GPU use while stages run."""
