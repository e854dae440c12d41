"""What an artefact's manifest says: identity, parts with their checksums, what it was made from."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from raydr.component import Config
from raydr.store.identity import Identity, fingerprint_of

MANIFEST = "manifest.json"


class Part(Config):
    """One file of an artefact."""

    rows: int
    bytes: int
    checksum: str
    counts: dict[str, int] = {}
    """What was counted while it was made, so that a resumed stage need not make it again to know."""


class Manifest(Config):
    """The last file written into an artefact."""

    identity: Identity
    fingerprint: str
    raydr_version: str
    created: str
    parts: dict[str, Part]
    made_from: dict[str, str] = {}
    """Digests of the contents of all that it was made from, nearest and farther, by fingerprint."""

    versions: dict[str, str] = {}
    """What an object store said of each part when the manifest was written (an ETag, or a time): a part of which it
    says something else was written since. Empty on a file system."""

    info: dict[str, Any] = {}
    """Counters and resolved settings, for people and for later stages."""

    run_config: dict[str, Any] = {}
    """The whole resolved run config, for provenance only."""

    @cached_property
    def digest(self) -> str:
        """Of the contents: differs where the same thing was made again with other bytes."""
        return fingerprint_of({name: part.checksum for name, part in self.parts.items()})
