"""Reading YAML files that hold a mapping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from raydr.errors import ConfigError


def read_mapping(path: str | Path, what: str, shape: str) -> dict[str, Any]:
    """The content of a file.

    Args:
        path: local.
        what: it is, for messages, for example ``config file``.
        shape: of the mapping, for messages, for example ``of sections``.

    Raises:
        ConfigError: the file is missing, is not YAML, or holds something else than a mapping.
    """
    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no {what} {path}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} must be a mapping {shape}, found {found!r}")
    return found
