"""What a node keeps of what it has fetched: files of object stores by their content, least recently used out first.

Each entry is a folder named after place and version of what it holds. An entry that was used within :data:`GRACE_S`
stays whatever the limit: who was just given its path may not have opened it yet. What is open, or mapped, goes on being
readable when its entry is removed.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from raydr.errors import ConfigError

#: Seconds since its last use in which an entry is not removed.
GRACE_S = 900.0
#: Seconds after which what a killed process has left of a fetch is removed.
_LEFT_S = 3600.0
#: Of the disk, unless ``RAYDR_CACHE_GIB`` says how much.
_SHARE = 0.5
#: Looking at all entries takes time: it is done when so much of the limit was fetched since the last look.
_LOOK_AT = 0.05
_ENTRY = re.compile(r"[0-9a-f]{32}")


class _Fetched:
    """Bytes that this process has fetched since it last looked at the limit; at first it looks."""

    since = float("inf")


def node_cache() -> Path:
    """The folder in which a node keeps what it has fetched and found out; ``RAYDR_CACHE`` says another one."""
    return Path(os.environ.get("RAYDR_CACHE", Path(tempfile.gettempdir()) / "raydr-cache"))


def cache_limit(root: Path) -> int:
    """Bytes that the cache may hold: ``RAYDR_CACHE_GIB``, or half of its disk.

    Raises:
        ConfigError: the variable is no number above 0.
    """
    stated = os.environ.get("RAYDR_CACHE_GIB", "")
    if not stated:
        return int(shutil.disk_usage(root).total * _SHARE)
    try:
        limit = int(float(stated) * 2**30)
    except ValueError:
        limit = 0
    if limit <= 0:
        raise ConfigError(f"RAYDR_CACHE_GIB is {stated!r}: expected a number of GiB above 0, for example 200")
    return limit


def fetched(key: str, fetch: Callable[[Path], None]) -> str:
    """The local path of an entry's content; fetched if it is not there.

    Args:
        key: of the entry, 32 hex digits, with the name of the file in it if the content is one.
        fetch: writes the content to a path.
    """
    root, target = node_cache(), node_cache() / key
    entry = root / Path(key).parts[0]
    while True:
        if not target.exists():
            _fetch_alone(root, target, fetch)
        try:
            _mark_used(entry)
        except FileNotFoundError:
            # Another process has emptied the cache since.
            continue
        # Looked at once more: from its mark on nobody removes the entry, but it may be a new and empty one.
        if target.exists():
            return str(target)


def _fetch_alone(root: Path, target: Path, fetch: Callable[[Path], None]) -> None:
    """Fetch what is not there; of the processes of a node one does, and the others wait for it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = open(target.with_name(f"{target.name}.lock"), "w")  # noqa: SIM115
    except FileNotFoundError:
        # The folder went before the lock was in it: tried again.
        return
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
            # Another process has removed the folder, which was not used for long: tried again.
            return
        _look(root, _size(target))


def _mark_used(entry: Path) -> None:
    # The clock of a file system stands still for some milliseconds, in which several entries may be used.
    now = time.time_ns()
    os.utime(entry, ns=(now, now))


def _look(root: Path, num_bytes: int) -> None:
    """Empty the cache if enough was fetched to look at it."""
    limit = cache_limit(root)
    _Fetched.since += num_bytes
    if _Fetched.since >= limit * _LOOK_AT:
        empty_cache(root, limit, time.time())
        _Fetched.since = 0.0


def empty_cache(root: Path, limit: int, now: float) -> list[str]:
    """Remove the entries that were not used for longest until the others are within the limit, and leftovers.

    Args:
        root: of the cache.
        limit: bytes.
        now: seconds since 1970.

    Returns:
        The names of the removed entries; none where another process is at it.
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
        held, removed = sum(size for *_, size in used), []
        for last, name, size in used:
            if held <= limit or now - last < GRACE_S:
                break
            # In one move, so that nobody is given half of it.
            aside = root / f"{name}.tmp-{uuid.uuid4().hex[:8]}"
            os.replace(root / name, aside)
            _remove(aside)
            held -= size
            removed.append(name)
    return removed


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    statuses = (_details(child) for child in path.rglob("*") if not child.is_dir())
    return sum(status.st_size for status in statuses if status)


def _details(path: Path) -> os.stat_result | None:
    """None if another process has moved or removed it since it was listed."""
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _remove(path: Path) -> None:
    if path.is_dir():
        # Another process may end a fetch in it meanwhile.
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
