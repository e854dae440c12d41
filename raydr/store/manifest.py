"""Manifest of an artefact: identity, parts with checksums, inputs."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from raydr.component import Config
from raydr.store.identity import Identity, fingerprint_of

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
