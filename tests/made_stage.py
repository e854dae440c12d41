"""An artefact made by a stage, begun and finished as the graph does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from raydr.distributed.pool import Pool, ThisProcess
from raydr.store.artifact import Artifact
from raydr.store.building import begin, record_part
from raydr.store.folder import Folder
from raydr.store.identity import Identity

#: Inputs that those who come after look for by these names.
_NAMED = ("corpus", "dataset", "negatives", "model")


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
    identity = identity or Identity(
        kind=kind, config=_plain(settings), inputs=_fingerprints([*inputs, *settings.values()])
    )
    with begin(folder if isinstance(folder, Folder) else str(folder), identity) as making:
        if isinstance(making, Artifact):
            return making
        return making.finish(stage(making, pool or ThisProcess(), *inputs, **settings))


def interrupt(made: Artifact, *kept: str) -> None:
    """Leave an artefact as a kill leaves it: no manifest, the plan, and of its parts only some, recorded."""
    folder = made.folder
    folder.remove("manifest.json")
    folder.write_json("plan.json", made.manifest.identity.model_dump(mode="json"))
    for name in made.parts():
        if name in kept:
            record_part(folder, name, made.manifest.parts[name])
        else:
            folder.remove(name)


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = to_jsonable_python(settings, fallback=lambda value: type(value).__qualname__)
    return plain


def _fingerprints(inputs: list[Any]) -> dict[str, str]:
    fingerprints: dict[str, str] = {}
    for at, item in enumerate(inputs):
        if isinstance(item, Artifact):
            kind, theirs = item.manifest.identity.kind, item.manifest.identity.inputs
            fingerprints[kind if kind in _NAMED and kind not in fingerprints else f"input {at}"] = item.fingerprint
            # What is made of a data set goes with its corpus.
            if kind == "dataset" and "corpus" in theirs:
                fingerprints["corpus"] = theirs["corpus"]
        elif isinstance(item, Mapping):
            fingerprints |= {
                f"input {at}: {name}": made.fingerprint for name, made in item.items() if isinstance(made, Artifact)
            }
    return fingerprints
