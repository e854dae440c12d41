"""Trained models in MLflow, in its flavour of sentence-transformers: ``mlflow models serve`` loads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

#: Where MLflow's flavour looks for the files of sentence-transformers, beside MLmodel.
_FILES = "model.sentence_transformer"
_FLAVOUR = "sentence_transformers"


def opens_there(folder: Path) -> bool:
    """Whether a folder is what SentenceTransformer opens: one vector a text, and one tower."""
    return (folder / "modules.json").is_file() and (folder / "1_Pooling").is_dir()


def log_model(client: Any, run_id: str, folder: Path, registered: str) -> None:
    """Log the files of a model as ``runs:/RUN/model``.

    MLflow's own function wants the model in memory, and opens sentence-transformers for it, which raydr does without.

    Args:
        client: of MLflow.
        run_id: the run.
        folder: the model.
        registered: the registered model that gets a version; none if empty.
    """
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ColSpec, Schema

    described = Model(artifact_path="model", run_id=run_id, signature=ModelSignature(Schema([ColSpec("string")])))
    described.add_flavor("python_function", loader_module=f"mlflow.{_FLAVOUR}", data=_FILES)
    described.add_flavor(_FLAVOUR)
    client.log_artifacts(run_id, str(folder), f"model/{_FILES}")
    client.log_text(run_id, described.to_yaml(), "model/MLmodel")
    if registered:
        if not client.search_registered_models(f"name = '{registered}'", max_results=1):
            client.create_registered_model(registered)
        client.create_model_version(registered, f"runs:/{run_id}/model", run_id)
