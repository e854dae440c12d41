"""Trained models in MLflow, in its flavour of sentence-transformers: ``mlflow models serve`` loads them."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

#: Where MLflow's flavour looks for the files of sentence-transformers, beside MLmodel.
_FILES = "model.sentence_transformer"
_FLAVOUR = "sentence_transformers"


def opens_there(folder: Path) -> bool:
    """Whether a folder is what SentenceTransformer opens: one vector a text, and one tower."""
    return (folder / "modules.json").is_file() and (folder / "1_Pooling").is_dir()


def log_model(client: Any, run_id: str, folder: Path, name: str, registered: str) -> None:
    """Log the files of a model as a model of MLflow 3, an output of the run: ``models:/ID`` and ``runs:/RUN/NAME``.

    MLflow's own function wants the model in memory, and opens sentence-transformers for it, which raydr does without.

    Args:
        client: of MLflow.
        run_id: the run.
        folder: the model.
        name: what the model is called in MLflow, without ``/ : . %`` and quotes.
        registered: the registered model that gets a version; none if empty.
    """
    from mlflow.entities import LoggedModelOutput
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ColSpec, Schema

    run = client.get_run(run_id)
    logged = client.create_logged_model(
        run.info.experiment_id, name, run_id, params=run.data.params, model_type="retriever"
    )
    client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, step=0)])
    described = Model(
        artifact_path=logged.artifact_location,
        run_id=run_id,
        signature=ModelSignature(Schema([ColSpec("string")])),
        model_uuid=logged.model_id,
        model_id=logged.model_id,
    )
    described.add_flavor("python_function", loader_module=f"mlflow.{_FLAVOUR}", data=_FILES)
    described.add_flavor(_FLAVOUR)
    client.log_model_artifacts(logged.model_id, str(folder), _FILES)
    with TemporaryDirectory() as written:
        described.save(f"{written}/MLmodel")
        client.log_model_artifact(logged.model_id, f"{written}/MLmodel")
    client.finalize_logged_model(logged.model_id, "READY")
    if registered:
        if not client.search_registered_models(f"name = '{registered}'", max_results=1):
            client.create_registered_model(registered)
        # Not models:/ID, which a client without a server looks for at the URI of the process.
        client.create_model_version(registered, logged.artifact_location, run_id, model_id=logged.model_id)


def measure(client: Any, experiment_id: str, key: str, values: dict[str, float]) -> None:
    """Log measures of a model into the run that made it, and for the model logged there; nothing where there is none.

    Args:
        client: of MLflow.
        experiment_id: where the run is looked for.
        key: of the model, the run's tag ``raydr.key``.
        values: by the names of the metrics.
    """
    from mlflow.entities import Metric

    runs = client.search_runs([experiment_id], f"tags.`raydr.key` = '{key}'", max_results=1)
    for run in runs:
        now, models = int(time.time() * 1000), run.outputs.model_outputs if run.outputs else []
        model_id = models[-1].model_id if models else None
        client.log_batch(
            run.info.run_id, metrics=[Metric(name, value, now, 0, model_id) for name, value in values.items()]
        )
