"""An artefact made by a stage, begun and finished as the graph does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from raydr.stages.pool import Pool, ThisProcess
from raydr.store.artifact import Artifact, Identity, begin
from raydr.store.folder import Folder


def make(
    folder: Path | Folder,
    kind: str,
    stage: Callable[..., dict[str, Any]],
    *inputs: Artifact | Mapping[str, Artifact] | None,
    pool: Pool | None = None,
    identity: Identity | None = None,
    **settings: Any,
) -> Artifact:
    """The artefact at ``folder``, made by ``stage(making, pool, *inputs, **settings)`` if it is not there.

    Args:
        identity: what it is; follows from the inputs and the settings if None, so that a second call finds it and one
            with other arguments is refused.
    """
    identity = identity or Identity(kind=kind, config=_plain(settings), inputs=_fingerprints(inputs))
    with begin(folder if isinstance(folder, Folder) else str(folder), identity) as making:
        if isinstance(making, Artifact):
            return making
        return making.finish(stage(making, pool or ThisProcess(), *inputs, **settings))


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = to_jsonable_python(settings, fallback=lambda value: type(value).__qualname__)
    return plain


def _fingerprints(inputs: tuple[Artifact | Mapping[str, Artifact] | None, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for at, one in enumerate(inputs):
        if isinstance(one, Artifact):
            found[f"input {at}"] = one.fingerprint
        elif one is not None:
            found |= {f"input {at}: {name}": artifact.fingerprint for name, artifact in one.items()}
    return found
