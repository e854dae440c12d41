"""Changed settings: those of variants and trials, and single ones of a command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from raydr.config.yaml_files import parse_yaml
from raydr.errors import ConfigError


def merged(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings with some of them changed; a component of another name replaces the whole one."""
    together = dict(base)
    for key, value in changes.items():
        there = together.get(key)
        nested = isinstance(value, dict) and isinstance(there, dict)
        if nested and value.get("name", there.get("name")) == there.get("name"):  # type: ignore[union-attr]
            together[key] = merged(there, value)  # type: ignore[arg-type]
        else:
            together[key] = value
    return together


def apply_override(raw: dict[str, Any], override: str, option: str = "--set") -> None:
    """Put ``key.path=value`` of a command line into nested settings; the value is YAML.

    Raises:
        ConfigError: it is written otherwise, or the key leads into a setting that has no settings of its own.
    """
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"{option} takes key=value, got {override!r}; for example {option} train.num_epochs=3")
    *parents, last = key.split(".")
    target = raw
    for parent in parents:
        inner = target.get(parent)
        if inner is None:
            inner = target[parent] = {}
        elif isinstance(inner, str):
            # A component may be written by its bare name; an override of its settings makes it a mapping.
            inner = target[parent] = {"name": inner}
        if not isinstance(inner, dict):
            raise ConfigError(f"{option} {override}: {parent} is {inner!r} and has no settings of its own")
        target = inner
    try:
        target[last] = parse_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{option} {override}: {text!r} is not YAML ({' '.join(str(error).split())})") from None
