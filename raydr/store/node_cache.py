"""Cache of a node: fetched files of object stores, evicted by least recent use, and marks of verified files.

The key of an entry is a checksum, or a hash of place and version. An entry used within :data:`GRACE_S` is never
evicted, since its user may not have opened it yet. Open or mapped files stay readable after eviction. A verified file
is marked by path, size and modification times: reading a large file twice would cost as much as the work on it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from raydr.errors import ArtifactError, ConfigError, DiskFullError, first_line
from raydr.store.filesystems import is_full

#: Seconds after the last use in which an entry is not evicted.
GRACE_S = 900.0
#: Seconds after which partial fetches of killed processes are removed.
_LEFT_S = 3600.0
#: Share of the disk, unless ``RAYDR_CACHE_GIB`` sets the size.
_SHARE = 0.5
#: Share of the limit that is fetched between two scans of all entries, which are slow.
_LOOK_AT = 0.05
_ENTRY = re.compile(r"[0-9a-f]{32}")


class _Fetched:
    """Bytes that this process fetched since its last scan; the first fetch scans."""

    since = float("inf")


def node_cache() -> Path:
    """Return the folder of the cache: ``RAYDR_CACHE``, or a default if it is not set or empty."""
    return Path(os.environ.get("RAYDR_CACHE") or Path(tempfile.gettempdir()) / "raydr-cache")


def cache_limit(root: Path) -> int:
    """Return the size limit in bytes: ``RAYDR_CACHE_GIB``, or half of the disk.

    Raises:
        ConfigError: the variable is no positive number.
    """
    variable = os.environ.get("RAYDR_CACHE_GIB", "")
    if not variable:
        return int(shutil.disk_usage(root).total * _SHARE)
    try:
        limit = int(float(variable) * 2**30)
    except (ValueError, OverflowError):
        limit = 0
    if limit <= 0:
        raise ConfigError(f"RAYDR_CACHE_GIB is {variable!r}: expected a number of GiB above 0, for example 200")
    return limit


def fetched(key: str, fetch: Callable[[Path], None]) -> str:
    """Return the local path of an entry, after a fetch if it is missing.

    Args:
        key: key of the entry, 32 hex digits, followed by the file name if the content is a single file.
        fetch: writes the content to a path.

    Raises:
        DiskFullError: the disk of the cache is full.
        ArtifactError: the cache is not writable.
    """
    root, target = node_cache(), node_cache() / key
    entry = root / Path(key).parts[0]
    while True:
        if not target.exists():
            try:
                _fetch_alone(root, target, fetch)
            except OSError as error:
                if not is_full(error):
                    raise
                raise DiskFullError(
                    f"cannot fetch {target.name} to {root}: {os.strerror(error.errno or 0)}. Free space there, or set "
                    "RAYDR_CACHE to a larger disk, then run the same command again: finished parts are kept."
                ) from error
        try:
            _mark_used(entry)
        except FileNotFoundError:
            # Another process has evicted the entry.
            continue
        # A second check: the mark protects the entry from now on, but may have recreated an empty folder.
        if target.exists():
            return str(target)


def _fetch_alone(root: Path, target: Path, fetch: Callable[[Path], None]) -> None:
    """Fetch a missing entry in one process of the node; the others wait."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = open(target.with_name(f"{target.name}.lock"), "w")  # noqa: SIM115
    except FileNotFoundError:
        # The folder was removed before the lock was created: try again.
        return
    except OSError as error:
        if is_full(error):
            raise
        # The default folder may belong to another user of this machine.
        raise ArtifactError(
            f"cannot fetch to {root}: {first_line(error)}. Set RAYDR_CACHE to a folder that this user can write"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return
        temporary = target.with_name(f"{target.name}.tmp-{uuid.uuid4().hex[:8]}")
        try:
            fetch(temporary)
            os.replace(temporary, target)
            _mark_used(target.parent if target.parent != root else target)
        except FileNotFoundError:
            if target.parent.exists():
                raise
            # Another process evicted the folder: try again.
            return
        finally:
            _remove(temporary)
        _look(root, _size(target))


def _mark_used(entry: Path) -> None:
    # File systems' clocks are coarse: several entries may be used within a tick.
    now = time.time_ns()
    os.utime(entry, ns=(now, now))


def _look(root: Path, num_bytes: int) -> None:
    """Evict entries if enough was fetched since the last scan."""
    limit = cache_limit(root)
    _Fetched.since += num_bytes
    if _Fetched.since >= limit * _LOOK_AT:
        empty_cache(root, limit, time.time())
        _Fetched.since = 0.0


def empty_cache(root: Path, limit: int, now: float) -> list[str]:
    """Evict the least recently used entries beyond the limit, and remove partial fetches.

    Args:
        root: root of the cache.
        limit: limit in bytes.
        now: seconds since 1970.

    Returns:
        Names of the removed entries; empty if another process is evicting.
    """
    with open(root / "emptying.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return []
        for left in [*root.glob("*.tmp-*"), *root.glob("*/*.tmp-*")]:
            details = _details(left)
            if details and now - details.st_mtime > _LEFT_S:
                _remove(left)
        entries = [entry for entry in root.iterdir() if _ENTRY.fullmatch(entry.name) and entry.is_dir()]
        used = sorted((entry.stat().st_mtime, entry.name, _size(entry)) for entry in entries)
        num_bytes, removed = sum(size for *_, size in used), []
        for last, name, size in used:
            if num_bytes <= limit or now - last < GRACE_S:
                break
            # A move is atomic, so that no process gets a partial entry.
            aside = root / f"{name}.tmp-{uuid.uuid4().hex[:8]}"
            os.replace(root / name, aside)
            _remove(aside)
            num_bytes -= size
            removed.append(name)
    return removed


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    statuses = (_details(child) for child in path.rglob("*") if not child.is_dir())
    return sum(status.st_size for status in statuses if status)


def _details(path: Path) -> os.stat_result | None:
    """Return the status of an entry; None if another process has moved or removed it."""
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _remove(path: Path) -> None:
    if path.is_dir():
        # Another process may finish a fetch in it meanwhile.
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


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
