"""What a saved model's folder says of itself; read without PyTorch."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from raydr.errors import ModelError
from raydr.models.checkpoint_settings import MODEL_FILE
from raydr.models.config import ModelConfig, Side


def read_config(folder: str | Path) -> ModelConfig:
    """The config of a saved model.

    Raises:
        ModelError: the folder holds no raydr model.
    """
    file = Path(folder) / MODEL_FILE
    if not file.exists():
        raise ModelError(f"{folder} holds no raydr model: expected a file {MODEL_FILE}")
    try:
        return ModelConfig.model_validate_json(file.read_bytes())
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise ModelError(
            f"{file} holds no settings of a model ({where}: {problem['msg']}): save the model again"
        ) from None


def tower_folder(folder: str | Path, side: Side) -> Path:
    """Where the encoder and the tokenizer of one side of a saved model are."""
    root = Path(folder)
    return root if read_config(folder).towers == "shared" else root / side
