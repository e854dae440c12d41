"""Relative paths of settings that shall hold in another folder, on another node, in a trial."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from raydr.component import Config
from raydr.data.inputs import absolute

_Settings = TypeVar("_Settings")


def anchored(name: str) -> str:
    """A path of what is there by its absolute path; anything else, such as a name on the hub, as it is."""
    return absolute(name) if name and "://" not in name and Path(name).expanduser().exists() else name


def with_anchored_checkpoints(found: _Settings) -> _Settings:
    """Settings with every checkpoint in them anchored, however deep it stands."""
    if isinstance(found, list | tuple):
        return type(found)(with_anchored_checkpoints(one) for one in found)
    if not isinstance(found, Config):
        return found
    values = {name: getattr(found, name) for name in type(found).model_fields}
    changed = {
        name: anchored(value)
        if name in ("checkpoint", "passage_checkpoint") and value
        else with_anchored_checkpoints(value)
        for name, value in values.items()
    }
    return found.model_copy(update={name: one for name, one in changed.items() if one != values[name]})
