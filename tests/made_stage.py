"""Artefacts made by a stage alone, under an identity that stands for nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from raydr.store.artifact import Artifact, Building, Identity, begin
from raydr.store.folder import Folder


def make(folder: Path, kind: str, stage: Callable[..., dict[str, Any]], *arguments: Any, **settings: Any) -> Artifact:
    """What a stage makes of its arguments; goes on with what an attempt before has left in the folder."""
    inputs = {one.manifest.identity.kind: one.fingerprint for one in arguments if isinstance(one, Artifact)}
    with begin(Folder(str(folder)), Identity(kind=kind, inputs=inputs)) as making:
        assert isinstance(making, Building)
        return making.finish(stage(making, *arguments, **settings))
