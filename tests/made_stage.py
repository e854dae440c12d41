"""Runs one stage as the graph does: begins the artefact, calls the stage, finishes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from raydr.component import Config
from raydr.stages.pool import Pool, ThisProcess
from raydr.store.artifact import Artifact, Identity, begin, record_part
from raydr.store.folder import Folder


def make(
    folder: Path | Folder,
    kind: str,
    stage: Callable[..., dict[str, Any]],
    *inputs: Any,
    pool: Pool | None = None,
    identity: Identity | None = None,
    **settings: Any,
) -> Artifact:
    """The artefact of a stage; reused where it is there already.

    Args:
        folder: where it goes.
        kind: of the artefact.
        stage: called as ``stage(making, pool, *inputs, **settings)``.
        inputs: artefacts, mappings of them by name, or None.
        pool: this process if None.
        identity: of the artefact; made of the inputs and all settings if None, so that other ones are refused.
        settings: of the stage.
    """
    identity = identity or Identity(
        kind=kind,
        config={name: _plain(value) for name, value in settings.items()},
        inputs={
            key: value
            for at, one in enumerate([*inputs, *settings.values()])
            for key, value in _fingerprints(str(at), one).items()
        },
    )
    with begin(folder if isinstance(folder, Folder) else str(folder), identity) as making:
        if isinstance(making, Artifact):
            return making
        return making.finish(stage(making, pool or ThisProcess(), *inputs, **settings))


def _plain(value: Any) -> Any:
    if isinstance(value, Artifact):
        return value.fingerprint
    if isinstance(value, Config):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(one) for name, one in asdict(value).items()}
    return value if value is None or isinstance(value, str | int | float | bool | list | dict) else repr(value)


def _fingerprints(role: str, given: Any) -> dict[str, str]:
    if isinstance(given, Artifact):
        kind, inputs = given.manifest.identity.kind, given.manifest.identity.inputs
        # By the names under which stages look for them; what is made of a data set goes with its corpus.
        found = {kind if kind in ("corpus", "dataset", "negatives", "model") else role: given.fingerprint}
        return found | ({"corpus": inputs["corpus"]} if kind == "dataset" and "corpus" in inputs else {})
    if isinstance(given, Mapping):
        return {f"{role}.{name}": one.fingerprint for name, one in given.items()}
    return {}


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
