"""Identity of an artefact, which determines its content, its hash, and the manifest that records it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from raydr.component import Config

FORMAT_VERSION = 1


class Identity(Config):
    """Everything that determines an artefact's content; hashed into its fingerprint.

    Paths, times and worker counts are excluded, since they do not change the content.
    """

    kind: str
    version: int = FORMAT_VERSION
    """Version of a stage, raised when its output changes for the same config."""

    config: dict[str, Any] = {}
    inputs: dict[str, str] = {}
    """Fingerprints of input artefacts and files, by role."""

    @property
    def fingerprint(self) -> str:
        """
        >>> a = Identity(kind="index", config={"factory": "Flat", "k": 1})
        >>> a.fingerprint == Identity(kind="index", config={"k": 1, "factory": "Flat"}).fingerprint
        True
        >>> a.fingerprint == Identity(kind="index", config={"factory": "SQfp16", "k": 1}).fingerprint
        False
        """
        return fingerprint_of(self.model_dump())


def fingerprint_of(value: Any) -> str:
    """Return BLAKE2b of canonical JSON, 32 hex digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differing settings, a line each, by dotted keys; identities leave out settings at their defaults.

    >>> differences({"settings": {}}, {"settings": {"depth": 20}, "split": "dev"})
    ['settings.depth was not set, is 20', "split was not set, is 'dev'"]
    >>> differences({}, {"guide": {}})
    ['guide was not set, is {}']
    """
    old, new = ({key: repr(value) for key, value in flatten(settings).items() if key} for settings in (before, now))
    keys, absent = sorted(old.keys() | new.keys()), "not set"
    # A section all at its defaults is an empty one.
    keys = [key for key in keys if not any(other.startswith(f"{key}.") for other in keys)]
    return [
        f"{key} was {old.get(key, absent)}, is {new.get(key, absent)}" for key in keys if old.get(key) != new.get(key)
    ]


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested dicts to dotted keys."""
    if not isinstance(value, Mapping) or not value:
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat.update(flatten(inner, f"{prefix}.{key}" if prefix else str(key)))
    return flat


#: Command that makes each kind of artefact.
COMMANDS = {
    "corpus": "raydr prepare CONFIG",
    "dataset": "raydr prepare CONFIG (raydr inject-noise CONFIG where it has inject_noise)",
    "negatives": "raydr mine CONFIG",
    "verdicts": "raydr judge CONFIG",
    "model": "raydr train CONFIG",
    "warmup": "raydr train CONFIG",
    "cross_encoder": "raydr train CONFIG --name ranker",
    "embeddings": "raydr encode CONFIG",
    "index": "raydr index CONFIG",
    "run": "raydr search CONFIG",
    "bm25": "raydr search CONFIG --model bm25 --split SPLIT",
    "evaluation": "raydr evaluate CONFIG",
    "audit": "raydr audit CONFIG",
    "diagnosis": "raydr diagnose CONFIG",
}


MANIFEST = "manifest.json"


class Part(Config):
    """A file of an artefact."""

    rows: int
    bytes: int
    checksum: str
    counts: dict[str, int] = {}
    """Counters of the part, so that a resumed stage need not make it again."""


class Manifest(Config):
    """Last file written into an artefact."""

    identity: Identity
    fingerprint: str
    raydr_version: str
    created: str
    parts: dict[str, Part]
    made_from: dict[str, str] = {}
    """Content digests of all direct and indirect inputs, by fingerprint."""

    versions: dict[str, str] = {}
    """Version of each part on the object store when the manifest was written (an ETag or time): a part with another
    version was written since. Empty on a file system."""

    info: dict[str, Any] = {}
    """Counters and resolved settings."""

    run_config: dict[str, Any] = {}
    """Resolved run config, for provenance only."""

    @cached_property
    def digest(self) -> str:
        """Return a digest of the contents, which differs after a repetition with other bytes."""
        return fingerprint_of({name: part.checksum for name, part in self.parts.items()})
