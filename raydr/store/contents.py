"""Cache of verified files: each content of a file is read once for its checksum.

Reading a large file twice would cost as much as the work on it. Verified files are recorded in the node's cache by
path, size and modification times.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from raydr.store.node_cache import node_cache

#: Verified files of this process, by path.
_seen: dict[str, str] = {}


def note_content(path: str, checksum: str) -> None:
    """Record a file's checksum; without effect if the cache is not writable."""
    absolute = os.path.abspath(path)
    version = _seen[absolute] = _version(absolute, checksum)
    mark = _mark(absolute)
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        temporary = mark.with_name(f"{mark.name}.tmp-{os.getpid()}")
        temporary.write_text(version)
        os.replace(temporary, mark)
    except OSError:
        # The next process reads the file again.
        return


def has_content(path: str, checksum: str) -> bool:
    """Return whether a file, in its current version, is recorded with a checksum."""
    absolute = os.path.abspath(path)
    version = _version(absolute, checksum)
    if _seen.get(absolute) == version:
        return True
    try:
        return _mark(absolute).read_text() == version
    except (OSError, UnicodeDecodeError):
        return False


def _version(path: str, checksum: str) -> str:
    details = os.stat(path)
    return f"{details.st_size} {details.st_mtime_ns} {details.st_ctime_ns} {checksum}"


def _mark(path: str) -> Path:
    return node_cache() / "verified" / hashlib.blake2b(os.fsencode(path), digest_size=16).hexdigest()
