"""Checking files against the checksums of their manifest, once for each content of a file.

Reading a large file twice would cost as much as the work on it: what was found whole is remembered in the node's cache
by path, size and time of last change.
"""

from __future__ import annotations

import os
from pathlib import Path

from raydr.errors import ArtifactError
from raydr.store.artifact import Artifact, Part
from raydr.store.folder import Folder, short_digest
from raydr.store.node_cache import node_cache


def verified(artifact: Artifact, name: str) -> str:
    """A local path of one part, which has the checksum that the manifest says.

    Raises:
        ArtifactError: the part is missing, or has other bytes than were written.
    """
    path = artifact.local(name)
    _verify(path, artifact.manifest.parts[name])
    return path


def verified_folder(artifact: Artifact) -> str:
    """A local path of a whole artefact, each part of which has its checksum.

    Raises:
        ArtifactError: a part is missing, or has other bytes than were written.
    """
    path = artifact.folder.localize_all()
    for name, part in artifact.manifest.parts.items():
        if not Path(path, name).is_file():
            raise ArtifactError(f"{artifact.folder.path(name)} is gone: make it again with --again")
        _verify(f"{path}/{name}", part)
    return path


def _verify(path: str, part: Part) -> None:
    found = os.stat(path)
    version = f"{found.st_size} {found.st_mtime_ns} {part.checksum}"
    seen = node_cache() / "verified" / short_digest(os.path.abspath(path))
    if seen.is_file() and seen.read_text() == version:
        return
    folder, _, name = os.path.abspath(path).rpartition("/")
    if found.st_size != part.bytes or Folder(folder).checksum(name) != part.checksum:
        raise ArtifactError(
            f"{path} does not have the checksum in the manifest: it was changed or damaged after it was written; "
            "make it again: the verb that made it, with --again"
        )
    seen.parent.mkdir(parents=True, exist_ok=True)
    temporary = seen.with_name(f"{seen.name}.tmp-{os.getpid()}")
    temporary.write_text(version)
    os.replace(temporary, seen)
